package signin

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// SI-11. Whatever content a sign-in object has, the operator and the access server keep running, report one problem
// about it, and keep serving other people.
//
// Guard: the CRD's schema, which above all requires one time format that every client can decode;
// signin.Facts.refusal; controller.signinOf.
func TestSI11_HostileContent(t *testing.T) {
	s := attacktest.Start(t)
	p := s.Person(t, "niaj-laptop", "niaj@example.com")
	s.SetPolicy(t, attacktest.Grant("niaj@example.com", `{"role": "view", "period": "8h"}`))
	s.WaitGranted(t, p)
	st := s.Login(t, p, signin.LoginRequest{})
	before := s.SignIns(t, st.Username)[0]
	k, err := kubernetes.NewForConfig(s.AccountConfig(t, "tailplane-access"))
	if err != nil {
		t.Fatal(err)
	}
	// The test sends raw requests, because a typed client may fail to decode the stored object.
	request := func(r *rest.Request, name ...string) *rest.Request {
		return r.AbsPath(append([]string{"/apis/tailplane.dev/v1alpha1/namespaces", testenv.SigninNamespace, "tkasignins"}, name...)...)
	}
	base := func() map[string]any {
		o := attacktest.ForgedSignIn("hostile@example.com", "n1", "view")
		return map[string]any{
			"apiVersion": "tailplane.dev/v1alpha1", "kind": "TkaSignin",
			"metadata": map[string]any{"name": o.Name, "namespace": o.Namespace, "finalizers": []any{v1alpha1.SigninFinalizer}},
			"spec": map[string]any{"user": map[string]any{"login": "hostile@example.com"}, "device": map[string]any{"id": "n1", "name": "d", "tailnet": "example.com"},
				"role": "view", "period": "1h", "askedAt": time.Now().UTC().Format(time.RFC3339)},
		}
	}
	set := func(value any, path ...string) func(map[string]any) {
		return func(o map[string]any) {
			for _, p := range path[:len(path)-1] {
				o = o[p].(map[string]any)
			}
			o[path[len(path)-1]] = value
		}
	}
	mega := strings.Repeat("a", 1<<20)
	stored := 0
	for what, change := range map[string]func(map[string]any){
		"a megabyte of login":      set(mega, "spec", "user", "login"),
		"a megabyte of role":       set(mega, "spec", "role"),
		"a megabyte of name":       set(mega, "spec", "user", "displayName"),
		"a megabyte of notes":      set(map[string]any{"example.com/x": mega[:250_000]}, "metadata", "annotations"),
		"a thousand namespaces":    set(slices.Repeat([]any{"shop"}, 1000), "spec", "namespaces"),
		"null for a role":          set(nil, "spec", "role"),
		"null for a user":          set(nil, "spec", "user"),
		"null for namespaces":      set(nil, "spec", "namespaces"),
		"null in namespaces":       set([]any{nil}, "spec", "namespaces"),
		"null for a time":          set(nil, "spec", "askedAt"),
		"null for a period":        set(nil, "spec", "period"),
		"null for everything":      set(nil, "spec"),
		"a list for everything":    set([]any{}, "spec"),
		"a number for a role":      set(7, "spec", "role"),
		"an unknown field":         set("x", "spec", "sudo"),
		"an unknown phase":         set(map[string]any{"phase": "Root"}, "status"),
		"a status of its own":      set(map[string]any{"phase": "Ready", "role": "cluster-admin", "validUntil": "2099-01-01T00:00:00Z"}, "status"),
		"the year 9999":            set("9999-12-31T23:59:59Z", "spec", "askedAt"),
		"the year 10000":           set("10000-01-01T00:00:00Z", "spec", "askedAt"),
		"the year 1":               set("0001-01-01T00:00:00Z", "spec", "askedAt"),
		"the year 0":               set("0000-01-01T00:00:00Z", "spec", "askedAt"),
		"the year -1":              set("-001-01-01T00:00:00Z", "spec", "askedAt"),
		"a time in small letters":  set("2026-01-01t00:00:00z", "spec", "askedAt"),
		"a time with a comma":      set("2026-01-01T00:00:00,5Z", "spec", "askedAt"),
		"a time with a letter":     set("2026-01-01T00:00:00x5Z", "spec", "askedAt"),
		"a leap second":            set("2026-06-30T23:59:60Z", "spec", "askedAt"),
		"a zone of 99 hours":       set("2026-01-01T00:00:00+99:99", "spec", "askedAt"),
		"a fine time":              set("2026-01-01T00:00:00.123456789123456789Z", "spec", "askedAt"),
		"a time of its own":        set("tomorrow", "spec", "askedAt"),
		"an hour that is not":      set("2026-01-01T24:00:00Z", "spec", "askedAt"),
		"a negative period":        set("-1h", "spec", "period"),
		"a period without end":     set("9999999999999999h", "spec", "period"),
		"a period of nothing":      set("0s", "spec", "period"),
		"a period in nanoseconds":  set("1ns", "spec", "period"),
		"a period in micro":        set("600000000µs", "spec", "period"),
		"a period as a quantity":   set("10Gi", "spec", "period"),
		"a year's period":          set("8760h", "spec", "period"),
		"a NUL in a login":         set("a\x00b@example.com", "spec", "user", "login"),
		"a break in a login":       set("a\nb@example.com", "spec", "user", "login"),
		"right to left":            set("\u202eecila@example.com", "spec", "user", "login"),
		"ANSI in a name":           set("\x1b[2Jhello", "spec", "user", "displayName"),
		"a template for a role":    set("{{.Role}}", "spec", "role"),
		"a path for a role":        set("../../secrets", "spec", "role"),
		"a masters' role":          set("system:masters", "spec", "role"),
		"a path for a namespace":   set([]any{"../kube-system"}, "spec", "namespaces"),
		"a foreign owner":          set([]any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}}, "metadata", "ownerReferences"),
		"large labels":             set(map[string]any{v1alpha1.SigninUIDLabel: string(before.UID)}, "metadata", "labels"),
		"another's name":           set(before.Name+"x", "metadata", "name"),
		"a name of 253 characters": set(strings.Repeat("n", 253), "metadata", "name"),
	} {
		o := base()
		change(o)
		body, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		name, _ := o["metadata"].(map[string]any)["name"].(string)
		err = request(k.CoreV1().RESTClient().Post()).SetHeader("Content-Type", "application/json").Body(body).Do(t.Context()).Error()
		if err != nil {
			if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) && !apierrors.IsForbidden(err) && !apierrors.IsRequestEntityTooLargeError(err) {
				t.Errorf("%s: %.300v", what, err)
			}
			continue
		}
		stored++
		// The API server stores the object. The operator must either report one problem about it or end it.
		state := "" // as the API server stores it, whether a client can decode it or not
		attacktest.Within(attacktest.Long, func() bool {
			raw, err := request(k.CoreV1().RESTClient().Get(), name).Do(t.Context()).Raw()
			if apierrors.IsNotFound(err) {
				state = "gone"
				return true
			}
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Metadata struct{ Generation int64 }
				Status   struct {
					ObservedGeneration int64
					Phase, Role        string
					Conditions         []metav1.Condition
				}
			}
			if json.Unmarshal(raw, &got) != nil || got.Status.ObservedGeneration != got.Metadata.Generation {
				return false
			}
			c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionReady)
			if c == nil || c.Reason == "" {
				t.Errorf("%s: %s", what, raw)
				return true
			}
			state = got.Status.Phase + " " + c.Reason
			if got.Status.Phase == string(signin.PhaseReady) {
				if got.Status.Role != "view" {
					t.Errorf("%s: Ready as %s", what, got.Status.Role)
				}
			} else if given := s.AccessOf(t, name); len(given) > 0 {
				t.Errorf("%s: %s, and given %v", what, state, given)
			}
			return true
		})
		if state == "" {
			t.Errorf("%s: stored, but the operator does not report it", what)
		}
		t.Logf("%s: %s", what, state)
		// Other people are served while the object exists.
		phone := s.Person(t, "niaj-phone", "niaj@example.com")
		ok := attacktest.Within(attacktest.Long, func() bool {
			a := s.Ask(t, phone, "POST", attacktest.API+"/login", "{}")
			b := s.Ask(t, phone, "GET", attacktest.API+"/kubeconfig?wait=5s", "")
			return a.Status == http.StatusAccepted && b.Status == http.StatusOK
		})
		if !ok {
			t.Errorf("%s: other callers cannot sign in while it exists", what)
		}
		if err := request(k.CoreV1().RESTClient().Delete(), name).Do(t.Context()).Error(); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		if !attacktest.Within(attacktest.Long, func() bool {
			return apierrors.IsNotFound(request(k.CoreV1().RESTClient().Get(), name).Do(t.Context()).Error())
		}) {
			t.Errorf("%s: it cannot be got rid of", what)
			freeHand(t, s, name)
		}
		if ok {
			s.Logout(t, phone)
		}
	}
	if stored < 5 {
		t.Errorf("only %d of them are stored: this tests only the schema", stored)
	}
	for _, p := range []*testenv.Process{s.Access, s.Operator} {
		select {
		case <-p.Done():
			t.Errorf("%s has ended", p.Args[1])
		default:
		}
		if strings.Contains(p.Output(), "panic") {
			t.Errorf("%s panicked", p.Args[1])
		}
	}
	if now := s.SignIns(t, st.Username); len(now) != 1 || now[0].ResourceVersion != before.ResourceVersion {
		t.Errorf("another's sign-in was touched: %s, was %s", mustJSON(t, now), mustJSON(t, before))
	}
	if a := s.Ask(t, p, "GET", attacktest.API+"/kubeconfig", ""); a.Status != http.StatusOK {
		t.Errorf("another's sign-in: %v", a)
	}
}

// freeHand removes a sign-in that the operator does not release, so that the following tests have a working system.
func freeHand(t *testing.T, s *attacktest.Env, name string) {
	t.Helper()
	c := s.ClientFor(t, s.AccountConfig(t, "tailplane-operator"))
	o := &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: name}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	_ = c.Patch(t.Context(), o, patch) // a client may fail to decode the answer
	if err := s.KubeClient.Delete(t.Context(), o); client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
	if err := s.Operator.Stop(attacktest.Long); err != nil {
		t.Error(err)
	}
	s.RestartOperator(t)
}

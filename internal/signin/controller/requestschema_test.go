//go:build unix

package controller

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
)

// newRequest returns a request of the owner for edit in the whole cluster, for an hour, with one approval.
func (p *env) newRequest(by signin.Owner, change ...func(*v1alpha1.TkaRequest)) *v1alpha1.TkaRequest {
	p.t.Helper()
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	o := &v1alpha1.TkaRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: fmt.Sprintf("%s%020x", v1alpha1.RequestPrefix, rand.Uint64())},
		Spec: v1alpha1.TkaRequestSpec{
			Cluster: v1alpha1.RequestCluster{Name: "test", ID: p.clusterID()},
			Requester: v1alpha1.Requester{SigninUser: v1alpha1.SigninUser{Login: by.Login, ID: by.UserID, DisplayName: by.DisplayName},
				Device: v1alpha1.SigninDevice{ID: by.DeviceID, Name: by.DeviceName, Tailnet: by.Tailnet}},
			Bind: []v1alpha1.SigninBind{{Role: "edit"}}, Period: metav1.Duration{Duration: time.Hour}, Approvals: 1, Reason: "INC-42: payments stuck",
			AskedAt: now, PendingUntil: metav1.NewTime(now.Add(8 * time.Hour)),
		},
	}
	for _, c := range change {
		c(o)
	}
	return o
}

func (p *env) ask(by signin.Owner, change ...func(*v1alpha1.TkaRequest)) *v1alpha1.TkaRequest {
	p.t.Helper()
	o := p.newRequest(by, change...)
	if err := p.client(p.accessConfig).Create(p.t.Context(), o); err != nil {
		p.t.Fatal(err)
	}
	return o
}

func (p *env) clusterID() string {
	p.t.Helper()
	ns := new(metav1.PartialObjectMetadata)
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := p.admin.Get(p.t.Context(), client.ObjectKey{Name: "kube-system"}, ns); err != nil {
		p.t.Fatal(err)
	}
	return string(ns.UID)
}

// patchRequest sends a JSON merge patch of the object, or of its status.
func (p *env) patchRequest(name, text string) error {
	o := &v1alpha1.TkaRequest{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: name}}
	patch := client.RawPatch(types.MergePatchType, []byte(text))
	if strings.HasPrefix(text, `{"status"`) {
		return p.admin.Status().Patch(p.t.Context(), o, patch)
	}
	return p.admin.Patch(p.t.Context(), o, patch)
}

// Parts of the statuses of the tests below.
var (
	testDigest = strings.Repeat("0", 64)
	byBob      = approvalText("bob@a.example", "u2", "n2", "")
	byCarol    = approvalText("carol@a.example", "u3", "n3", "")
	denied1    = `{"is":"Denied","login":"bob@a.example","userID":"u2","device":"n2","at":"2026-11-01T10:00:00Z","reason":"no"}`
	revoked1   = `{"login":"bob@a.example","userID":"u2","device":"n2","at":"2026-11-01T10:00:00Z"}`
)

func approvalText(login, id, device, more string) string {
	return fmt.Sprintf(`{"login":%q,"userID":%q,"device":%q,"digest":%q,"at":"2026-11-01T10:00:00Z"%s}`, login, id, device, testDigest, more)
}

func useText(device, period string) string {
	return fmt.Sprintf(`{"at":"2026-11-01T10:00:00Z","signin":"alice-0123456789abcdef0123","signinUID":"s1","device":%q,"period":%q}`, device, period)
}

// RQ-01, RQ-03, RQ-06, RQ-08: what the schema of requests allows and refuses. It is the second line: the access
// server decides before.
func TestRQ01_RequestSchema(t *testing.T) {
	p := newEnv(t)
	alice := p.owner("alice@a.example", "laptop")
	alice.UserID = "u1"
	approvals := func(all ...string) string {
		return fmt.Sprintf(`{"status":{"approvals":[%s]}}`, strings.Join(all, ","))
	}
	status := func(fields string) string { return `{"status":{` + fields + `}}` }
	use := `"use":` + useText(alice.DeviceID, "1h")
	used := []string{approvals(byBob), status(use)}
	breakGlass := func(o *v1alpha1.TkaRequest) { o.Spec.BreakGlass, o.Spec.Approvals = true, 0 }
	none := func(o *v1alpha1.TkaRequest) { o.Spec.Approvals = 0 }
	two := func(o *v1alpha1.TkaRequest) { o.Spec.Approvals = 2 }
	whole := status(strings.TrimSuffix(strings.TrimPrefix(approvals(byBob), `{"status":{`), `}}`) + `,"usableUntil":"2026-11-01T11:00:00Z",` + use + `,"revoked":` + revoked1)
	for _, tt := range []struct {
		why    string
		of     func(*v1alpha1.TkaRequest)
		before []string // patches that succeed
		patch  string
		want   string // part of the refusal; "": allowed
	}{
		{"an approval", nil, nil, approvals(byBob), ""},
		{"a second one", nil, []string{approvals(byBob)}, approvals(byBob, byCarol), ""},
		{"a shorter period", nil, nil, approvals(approvalText("bob@a.example", "u2", "n2", `,"period":"30m"`)), ""},
		{"the deadline of the use", nil, []string{approvals(byBob)}, status(`"usableUntil":"2026-11-01T11:00:00Z"`), ""},
		{"a denial", nil, nil, status(`"decision":` + denied1), ""},
		{"a denial after an approval", nil, []string{approvals(byBob)}, status(`"decision":` + denied1), ""},
		{"a use", nil, []string{approvals(byBob)}, status(use), ""},
		{"a use of self-service", none, nil, status(use), ""},
		{"a revocation", nil, used, status(`"revoked":` + revoked1), ""},
		{"a review of break-glass", breakGlass, []string{status(use)}, status(`"reviewed":` + revoked1), ""},
		{"a notice", nil, []string{whole}, status(`"notified":[{"step":"asked","target":"slack","at":"2026-11-01T10:00:00Z"}]`), ""},
		{"no notice", nil, []string{status(`"notified":[{"step":"asked","target":"slack","at":"2026-11-01T10:00:00Z"}]`)}, status(`"notified":null`), ""},
		{"a label", nil, []string{whole}, `{"metadata":{"labels":{"team":"shop"}}}`, ""},
		{"the same again", nil, []string{whole}, whole, ""},

		{"another reason", nil, nil, `{"spec":{"reason":"because"}}`, "spec is immutable"},
		{"another role", nil, nil, `{"spec":{"bind":[{"role":"cluster-admin"}]}}`, "spec is immutable"},
		{"fewer approvals", nil, nil, `{"spec":{"approvals":0}}`, "spec is immutable"},
		{"another requester", nil, nil, `{"spec":{"requester":{"login":"bob@a.example"}}}`, "spec is immutable"},
		{"no user ID", nil, nil, `{"spec":{"requester":{"id":null}}}`, "spec is immutable"},
		{"an added rule", nil, nil, `{"spec":{"rule":"oncall"}}`, "spec is immutable"},
		{"an own approval", nil, nil, approvals(approvalText("alice@a.example", "u9", "n9", "")), "people do not approve their own requests"},
		{"an own approval in another case", nil, nil, approvals(approvalText("ALICE@a.Example", "u9", "n9", "")), "people do not approve their own requests"},
		{"an own approval under a new login", nil, nil, approvals(approvalText("al@a.example", "u1", "n9", "")), "people do not approve their own requests"},
		{"an approval from the requester's device", nil, nil, approvals(approvalText("dave@a.example", "u5", alice.DeviceID, "")), "people do not approve their own requests"},
		{"an own approval beside another", nil, []string{approvals(byBob)}, approvals(byBob, approvalText("Alice@a.example", "u9", "n9", "")), "people do not approve their own requests"},
		{"a login twice", nil, nil, approvals(byBob, byBob), "Duplicate value"},
		{"a login in two cases", nil, nil, approvals(byBob, approvalText("Bob@a.example", "u8", "n8", "")), "each person approves once"},
		{"two logins of a user ID", nil, nil, approvals(byBob, approvalText("bob2@a.example", "u2", "n8", "")), "each person approves once"},
		{"a longer period", nil, nil, approvals(approvalText("bob@a.example", "u2", "n2", `,"period":"61m"`)), "only shorten"},
		{"a period of nothing", nil, nil, approvals(approvalText("bob@a.example", "u2", "n2", `,"period":"0s"`)), "only shorten"},
		{"a digest that is none", nil, nil, strings.ReplaceAll(approvals(byBob), testDigest, "x"), "digest"},
		{"an approval is taken back", nil, []string{approvals(byBob, byCarol)}, approvals(byBob), "approvals can only be added"},
		{"all are taken back", nil, []string{approvals(byBob)}, approvals(), "approvals can only be added"},
		{"an approval is changed", nil, []string{approvals(byBob)}, approvals(approvalText("bob@a.example", "u2", "n2", `,"period":"30m"`)), "approvals can only be added"},
		{"an approval is exchanged", nil, []string{approvals(byBob)}, approvals(byCarol), "approvals can only be added"},
		{"a use without approvals", nil, nil, status(use), "before it has enough approvals"},
		{"a use with one of two", two, []string{approvals(byBob)}, status(use), "before it has enough approvals"},
		{"a deadline without approvals", nil, nil, status(`"usableUntil":"2026-11-01T11:00:00Z"`), "before it has enough approvals"},
		{"a use from another device", nil, []string{approvals(byBob)}, status(`"use":` + useText("n9", "1h")), "only the device that asked"},
		{"a use for longer", nil, []string{approvals(byBob)}, status(`"use":` + useText(alice.DeviceID, "2h")), "at most as long"},
		{"a use for nothing", nil, []string{approvals(byBob)}, status(`"use":` + useText(alice.DeviceID, "0s")), "at most as long"},
		{"a second use", nil, used, status(`"use":{"signinUID":"s2"}`), "use is set once"},
		{"a later use", nil, used, status(`"use":{"at":"2026-11-01T12:00:00Z"}`), "use is set once"},
		{"an approval after the use", nil, used, approvals(byBob, byCarol), "no approval is added"},
		{"an approval after the use of self-service", none, []string{status(use)}, approvals(byBob), "no approval is added"},
		{"an approval after a denial", nil, []string{status(`"decision":` + denied1)}, approvals(byBob), "no approval is added"},
		{"another approval after a denial", nil, []string{approvals(byBob), status(`"decision":` + denied1)}, approvals(byBob, byCarol), "no approval is added"},
		{"a denial after the use", nil, used, status(`"decision":` + denied1), "used or decided"},
		{"a use after a denial", nil, []string{approvals(byBob), status(`"decision":` + denied1)}, status(use), "used or decided"},
		{"another decision", nil, []string{status(`"decision":` + denied1)}, status(`"decision":{"is":"Cancelled"}`), "decision is set once"},
		{"a decision that is none", nil, nil, strings.ReplaceAll(status(`"decision":`+denied1), "Denied", "Approved"), "Unsupported value"},
		{"a revocation before the use", nil, nil, status(`"revoked":` + revoked1), "only a used request is revoked"},
		{"another revocation", nil, []string{whole}, status(`"revoked":{"login":"carol@a.example"}`), "revoked is set once"},
		{"another deadline", nil, []string{whole}, status(`"usableUntil":"2026-11-01T12:00:00Z"`), "usableUntil is set once"},
		{"a review of a request", nil, used, status(`"reviewed":` + revoked1), "only a break-glass use is reviewed"},
		{"a review before the use", breakGlass, nil, status(`"reviewed":` + revoked1), "only a break-glass use is reviewed"},
		{"an own review", breakGlass, []string{status(use)}, status(`"reviewed":` + strings.ReplaceAll(revoked1, "bob", "Alice")), "people do not review their own uses"},
		{"a second review", breakGlass, []string{status(use), status(`"reviewed":` + revoked1)}, status(`"reviewed":{"reason":"fine"}`), "reviewed is set once"},
		{"a control character in a comment", nil, nil, approvals(approvalText("bob@a.example", "u2", "n2", `,"comment":"a\u001b[2J"`)), "comment"},

		{"no approvals", nil, []string{whole}, status(`"approvals":null`), "approvals can only be added"},
		{"no deadline", nil, []string{whole}, status(`"usableUntil":null`), "usableUntil is set once"},
		{"no use", nil, []string{whole}, status(`"use":null`), "use is set once"},
		{"no revocation", nil, []string{whole}, status(`"revoked":null`), "revoked is set once"},
		{"no decision", nil, []string{status(`"decision":` + denied1)}, status(`"decision":null`), "decision is set once"},
		{"no review", breakGlass, []string{status(use), status(`"reviewed":` + revoked1)}, status(`"reviewed":null`), "reviewed is set once"},
		{"no status", nil, []string{whole}, `{"status":null}`, "is set once"},
		{"no status after a denial", nil, []string{status(`"decision":` + denied1)}, `{"status":null}`, "decision is set once"},
		{"no status after an approval", nil, []string{approvals(byBob)}, `{"status":null}`, "approvals can only be added"},
	} {
		t.Run(tt.why, func(t *testing.T) {
			var of []func(*v1alpha1.TkaRequest)
			if tt.of != nil {
				of = append(of, tt.of)
			}
			o := p.ask(alice, of...)
			for _, patch := range tt.before {
				if err := p.patchRequest(o.Name, patch); err != nil {
					t.Fatalf("before: %v", err)
				}
			}
			err := p.patchRequest(o.Name, tt.patch)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && err == nil:
				t.Error("allowed")
			case tt.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

// RQ-17: what the schema says about a new request.
func TestRQ17_NewRequestSchema(t *testing.T) {
	p := newEnv(t)
	alice := p.owner("alice@a.example", "laptop")
	type change = func(*v1alpha1.TkaRequest)
	for _, tt := range []struct {
		why    string
		change change
		want   string
	}{
		{"as the server writes it", func(*v1alpha1.TkaRequest) {}, ""},
		{"a node", func(o *v1alpha1.TkaRequest) {
			o.Spec.Requester.Login, o.Spec.Requester.ID, o.Spec.Requester.Tags = "node:ci", "", []string{"tag:ci"}
		}, ""},
		{"a status is not stored", func(o *v1alpha1.TkaRequest) { o.Status.Decision = &v1alpha1.RequestDecision{Is: "nonsense"} }, ""},
		{"another name", func(o *v1alpha1.TkaRequest) { o.Name = "edit-shop" }, "the name must be"},
		{"no reason", func(o *v1alpha1.TkaRequest) { o.Spec.Reason = "" }, "reason"},
		{"a long reason", func(o *v1alpha1.TkaRequest) { o.Spec.Reason = strings.Repeat("x", 501) }, "reason"},
		{"a reason of two lines", func(o *v1alpha1.TkaRequest) { o.Spec.Reason = "a\nb" }, "reason"},
		{"an escape in the reason", func(o *v1alpha1.TkaRequest) { o.Spec.Reason = "a\x1b[2J" }, "reason"},
		{"no role", func(o *v1alpha1.TkaRequest) { o.Spec.Bind = nil }, "bind"},
		{"a role twice", func(o *v1alpha1.TkaRequest) { o.Spec.Bind = append(o.Spec.Bind, o.Spec.Bind[0]) }, "Duplicate value"},
		{"six approvals", func(o *v1alpha1.TkaRequest) { o.Spec.Approvals = 6 }, "approvals"},
		{"minus one approval", func(o *v1alpha1.TkaRequest) { o.Spec.Approvals = -1 }, "approvals"},
		{"break-glass with approvals", func(o *v1alpha1.TkaRequest) { o.Spec.BreakGlass = true }, "break-glass needs no approvals"},
		{"a period of nothing", func(o *v1alpha1.TkaRequest) { o.Spec.Period.Duration = 0 }, "period must be"},
		{"pending for two days", func(o *v1alpha1.TkaRequest) { o.Spec.PendingUntil = metav1.NewTime(o.Spec.AskedAt.Add(48 * time.Hour)) }, "pendingUntil"},
		{"pending for nothing", func(o *v1alpha1.TkaRequest) { o.Spec.PendingUntil = o.Spec.AskedAt }, "pendingUntil"},
	} {
		o := p.newRequest(alice, tt.change)
		err := p.admin.Create(t.Context(), o)
		switch {
		case err == nil && o.Status.Decision != nil:
			t.Errorf("%s: stored %+v", tt.why, o.Status.Decision)
		case tt.want == "" && err != nil:
			t.Errorf("%s: refused: %v", tt.why, err)
		case tt.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: got %v, want %s", tt.why, err, tt.want)
		}
	}
}

// RQ-11: a session that is the name of a request belongs to that request's sign-in, and to no other.
func TestRQ11_SessionOfARequest(t *testing.T) {
	p := newEnv(t)
	const name = "req-0123456789abcdef0123"
	for _, tt := range []struct{ session, request string }{{name, ""}, {"deploy", name}, {"", name}, {name, "req-3333456789abcdef0123"}, {"req-1", ""}, {name, name}, {"deploy", ""}, {"", ""}} {
		owner := p.owner("alice@a.example", "laptop")
		owner.Session = signin.Session(tt.session)
		want := newSignin(owner, "edit", time.Hour)
		if tt.request != "" {
			want.ByRequest = signin.RequestRef{Name: tt.request, UID: "q1", Digest: testDigest}
		}
		err := p.admin.Create(t.Context(), objectOf(want, p.ns))
		isValid := tt.session == tt.request || tt.request == "" && !strings.HasPrefix(tt.session, "req-")
		if isValid != (err == nil) {
			t.Errorf("session %q, request %q: %v", tt.session, tt.request, err)
		}
		if err != nil {
			continue
		}
		for _, patch := range []string{`{"spec":{"request":null}}`, `{"spec":{"request":{"name":"req-4444456789abcdef0123","uid":"q2","digest":"` + testDigest + `"}}}`, `{"spec":{"session":"other"}}`} {
			err := p.admin.Patch(t.Context(), &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: want.Name}}, client.RawPatch(types.MergePatchType, []byte(patch)))
			if isChange := tt.request != "" || !strings.Contains(patch, `null`); isChange && !apierrors.IsInvalid(err) {
				t.Errorf("session %q, request %q, patch %s: %v", tt.session, tt.request, patch, err)
			}
		}
	}
}

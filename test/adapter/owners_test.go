package adapter

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Owners are ConfigMaps, pinned to east or west. Secrets are their dependents.
const ownersRules = `
- {name: owners, match: {apiGroups: [""], resources: [configmaps], namespaces: [owned, fixed, sheltered, set-apart]}, target: {spread: {members: [east, west]}}}
- {name: owned, match: {apiGroups: [""], resources: [secrets], namespaces: [owned]}, target: {spread: {members: [east, west]}}}
- {name: fixed, match: {apiGroups: [""], resources: [secrets], namespaces: [fixed]}, target: {cluster: east}}
- {name: sheltered, match: {apiGroups: [""], resources: [secrets], namespaces: [sheltered]}, target: {spread: {members: [east, west], ownerReferences: shelter}}}
- {name: set-apart, match: {apiGroups: [""], resources: [secrets], namespaces: [set-apart]}, target: {cluster: east, ownerReferences: shelter}}
`

const (
	pinKey     = "mca.tailplane.dev/cluster"
	ownersNote = "mca.tailplane.dev/owner-references"
)

// owner creates a ConfigMap in a cluster, through the adapter, and returns the reference to it.
func (s *clustersEnv) owner(t *testing.T, namespace, name, cluster string) metav1.OwnerReference {
	t.Helper()
	cm, err := s.client(t).CoreV1().ConfigMaps(namespace).Create(t.Context(), configMap(namespace, name, map[string]string{pinKey: cluster}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: cm.UID}
}

func owned(name, cluster string, owners ...metav1.OwnerReference) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}
	if cluster != "" {
		s.Labels = map[string]string{pinKey: cluster}
	}
	return s
}

// warningLog collects the warnings that clients receive with their answers.
type warningLog struct {
	mu   sync.Mutex
	text []string
}

func (w *warningLog) HandleWarningHeader(_ int, _ string, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

func (w *warningLog) has(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.text, func(s string) bool { return strings.Contains(s, text) })
}

func (s *clustersEnv) namespaces(t *testing.T, names ...string) {
	t.Helper()
	for _, k := range s.admin {
		for _, name := range names {
			if _, err := k.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := k.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// orphan creates an object in east whose owner does not exist in east, and waits until the garbage collector deletes
// it. By then the garbage collector has processed all earlier objects.
func (s *clustersEnv) orphan(t *testing.T, namespace string, owner metav1.OwnerReference) {
	t.Helper()
	secrets := s.admin["east"].CoreV1().Secrets(namespace)
	if _, err := secrets.Create(t.Context(), owned("orphan", "", owner), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(t, secrets.Get, "orphan")
}

func gone(t *testing.T, get func(context.Context, string, metav1.GetOptions) (*corev1.Secret, error), name string) {
	t.Helper()
	eventually(t, name+" is collected", func() bool {
		_, err := get(t.Context(), name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err != nil
	})
}

// ADP-13, AD-11: a dependent is created in the cluster of its owner, and refused if that is not possible.
// Alternatively the adapter hides its owner reference from a garbage collector that does not know the owner.
func TestSeveral_Owners(t *testing.T) {
	shared := three(t)
	shared.namespaces(t, "owned", "fixed", "sheltered", "set-apart")
	s := shared.beside(t, severalConfig+ownersRules)
	k := s.client(t)
	t.Run("follow", func(t *testing.T) {
		secrets := k.CoreV1().Secrets("owned")
		for _, cluster := range []string{"east", "west"} {
			owner := s.owner(t, "owned", "of-"+cluster, cluster)
			for i := range 4 {
				name := fmt.Sprint(cluster, "-", i)
				if _, err := secrets.Create(t.Context(), owned(name, "", owner), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				if _, err := s.admin[cluster].CoreV1().Secrets("owned").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
					t.Errorf("it is not with its owner in %s: %v", cluster, err)
				}
			}
		}
		switch _, err := secrets.Create(t.Context(), owned("torn", "west", s.owner(t, "owned", "at-east", "east")), metav1.CreateOptions{}); {
		case !apierrors.IsInvalid(err):
			t.Errorf("pinned to another cluster than its owner: apierrors.IsInvalid(err) is false; %v", err)
		case !strings.Contains(err.Error(), "east"):
			t.Errorf("pinned to another cluster than its owner: err.Error() = %q does not contain %q", err.Error(), "east")
		case !strings.Contains(err.Error(), "west"):
			t.Errorf("pinned to another cluster than its owner: err.Error() = %q does not contain %q", err.Error(), "west")
		}
		// It is deleted with its owner, as in one cluster.
		if err := k.CoreV1().ConfigMaps("owned").Delete(t.Context(), "of-west", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			gone(t, secrets.Get, fmt.Sprint("west-", i))
		}
	})
	t.Run("422", func(t *testing.T) {
		owner := s.owner(t, "fixed", "of-west", "west")
		_, err := k.CoreV1().Secrets("fixed").Create(t.Context(), owned("child", "", owner), metav1.CreateOptions{})
		switch {
		case !apierrors.IsInvalid(err):
			t.Errorf("apierrors.IsInvalid(err) is false; %v", err)
		case !strings.Contains(err.Error(), "east"):
			t.Errorf("err.Error() = %q does not contain %q", err.Error(), "east")
		case !strings.Contains(err.Error(), "west"):
			t.Errorf("err.Error() = %q does not contain %q", err.Error(), "west")
		}
		// An existing object cannot get such an owner either, because it would be deleted.
		secrets := k.CoreV1().Secrets("fixed")
		if _, err := secrets.Create(t.Context(), owned("child", ""), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		adopt := func(owner metav1.OwnerReference) error {
			_, err := secrets.Patch(t.Context(), "child", types.StrategicMergePatchType, []byte(`{"metadata":{"ownerReferences":[`+asText(t, owner)+`]}}`), metav1.PatchOptions{})
			return err
		}
		if err := adopt(owner); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "west") {
			t.Errorf("adopted by an owner in another cluster: %v, want 422", err)
		}
		if err := adopt(s.owner(t, "fixed", "of-east", "east")); err != nil {
			t.Errorf("adopted by an owner in the same cluster: %v", err)
		}
		s.orphan(t, "fixed", owner)
		if _, err := s.admin["east"].CoreV1().Secrets("fixed").Get(t.Context(), "child", metav1.GetOptions{}); err != nil {
			t.Errorf("the garbage collector deleted it: %v", err)
		}
	})
	for _, namespace := range []string{"sheltered", "set-apart"} {
		t.Run(namespace, func(t *testing.T) { s.shelter(t, namespace) })
	}
}

func (s *clustersEnv) shelter(t *testing.T, namespace string) {
	told := &warningLog{}
	c := config(t, s.adapter)
	c.WarningHandler = told
	k, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	far, near := s.owner(t, namespace, "of-west", "west"), s.owner(t, namespace, "of-east", "east")
	far.Controller, far.BlockOwnerDeletion = new(true), new(false)
	want := []metav1.OwnerReference{far, near}
	secrets, stored := k.CoreV1().Secrets(namespace), s.admin["east"].CoreV1().Secrets(namespace)
	same := func(what string, got []metav1.OwnerReference, notes map[string]string) {
		t.Helper()
		if g, w := asText(t, got), asText(t, want); g != w {
			t.Errorf("%s: the owners are\n%s\nwant\n%s", what, g, w)
		}
		if _, shown := notes[ownersNote]; shown {
			t.Errorf("%s: it shows the annotation", what)
		}
	}
	kept := func(what, name string) {
		t.Helper()
		got, err := stored.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if asText(t, got.OwnerReferences) != asText(t, []metav1.OwnerReference{near}) || !strings.Contains(got.Annotations[ownersNote], string(far.UID)) {
			t.Errorf("%s: stored as %s and %q", what, asText(t, got.OwnerReferences), got.Annotations[ownersNote])
		}
	}

	watch, err := secrets.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	child := owned("child", "east", want...)
	made, err := secrets.Create(t.Context(), child, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	same("create", made.OwnerReferences, made.Annotations)
	kept("create", "child")
	if !told.has("no garbage collector") {
		t.Errorf("told %q", told.text)
	}
	watched := false
	for deadline := time.After(limit); !watched; {
		select {
		case ev, open := <-watch.ResultChan():
			if !open {
				t.Fatal("the watch ended")
			}
			if secret, ok := ev.Object.(*corev1.Secret); ok && secret.Name == "child" {
				same("watch", secret.OwnerReferences, secret.Annotations)
				watched = true
			}
		case <-deadline:
			t.Fatal("the watch sends nothing")
		}
	}

	// A client that writes and reads protobuf.
	proto := rest.CopyConfig(c)
	proto.ContentType, proto.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	p, err := kubernetes.NewForConfig(proto)
	if err != nil {
		t.Fatal(err)
	}
	other, err := p.CoreV1().Secrets(namespace).Create(t.Context(), owned("in-protobuf", "east", want...), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	same("create in protobuf", other.OwnerReferences, other.Annotations)
	kept("create in protobuf", "in-protobuf")

	// Clients that update, apply or patch keep the owner reference that they wrote.
	if other.Data = map[string][]byte{"a": []byte("b")}; other.Annotations == nil {
		other.Annotations = map[string]string{}
	}
	other.Annotations["mine"] = "too"
	if other, err = p.CoreV1().Secrets(namespace).Update(t.Context(), other, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	same("update in protobuf", other.OwnerReferences, other.Annotations)
	kept("update in protobuf", "in-protobuf")
	made.Data = map[string][]byte{"a": []byte("b")}
	if made, err = secrets.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	same("update", made.OwnerReferences, made.Annotations)
	kept("update", "child")
	for _, patch := range []struct {
		kind types.PatchType
		body string
	}{
		{types.MergePatchType, `{"metadata":{"labels":{"merged":"yes"}}}`},
		{types.MergePatchType, `{"metadata":{"ownerReferences":` + asText(t, want) + `}}`},
		{types.StrategicMergePatchType, `{"metadata":{"annotations":{"other":"yes"}}}`},
		{types.JSONPatchType, `[{"op":"add","path":"/metadata/labels/patched","value":"yes"}]`},
	} {
		got, err := secrets.Patch(t.Context(), "child", patch.kind, []byte(patch.body), metav1.PatchOptions{})
		if err != nil {
			t.Fatalf("%s %s: %v", patch.kind, patch.body, err)
		}
		same(string(patch.kind), got.OwnerReferences, got.Annotations)
		kept(string(patch.kind), "child")
	}
	for kind, body := range map[types.PatchType]string{
		types.JSONPatchType:           `[{"op":"remove","path":"/metadata/ownerReferences/0"}]`,
		types.StrategicMergePatchType: `{"metadata":{"ownerReferences":[{"uid":"` + string(near.UID) + `","$patch":"delete"}]}}`,
	} {
		if _, err := secrets.Patch(t.Context(), "child", kind, []byte(body), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("%s of owners: %v, want 422", kind, err)
		}
	}
	apply := applycore.Secret("applied", namespace).WithLabels(map[string]string{pinKey: "east"})
	for _, r := range want {
		ref := applymeta.OwnerReference().WithAPIVersion(r.APIVersion).WithKind(r.Kind).WithName(r.Name).WithUID(r.UID)
		ref.Controller, ref.BlockOwnerDeletion = r.Controller, r.BlockOwnerDeletion
		apply.WithOwnerReferences(ref)
	}
	for range 2 {
		got, err := secrets.Apply(t.Context(), apply, metav1.ApplyOptions{FieldManager: "test"})
		if err != nil {
			t.Fatal(err)
		}
		same("apply", got.OwnerReferences, got.Annotations)
		kept("apply", "applied")
	}

	// Every client reads back what was written.
	for name, client := range map[string]*kubernetes.Clientset{"JSON": k, "protobuf": p} {
		got, err := client.CoreV1().Secrets(namespace).Get(t.Context(), "child", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		same("get "+name, got.OwnerReferences, got.Annotations)
		for _, in := range []string{namespace, ""} {
			list, err := client.CoreV1().Secrets(in).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			seen := 0
			for _, item := range list.Items {
				if item.Namespace == namespace {
					seen++
					same(fmt.Sprintf("list %s of namespace %q", name, in), item.OwnerReferences, item.Annotations)
				}
			}
			if seen != 3 {
				t.Errorf("list %s of namespace %q has %d of 3", name, in, seen)
			}
		}
	}
	m, err := metadata.NewForConfig(proto)
	if err != nil {
		t.Fatal(err)
	}
	only, err := m.Resource(corev1.SchemeGroupVersion.WithResource("secrets")).Namespace(namespace).Get(t.Context(), "child", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	same("metadata", only.OwnerReferences, only.Annotations)
	for _, path := range []string{"/secrets/child", "/secrets", "/secrets?watch=true&timeoutSeconds=2"} {
		s.tables(t, "/api/v1/namespaces/"+namespace+path, func(m metav1.ObjectMeta) { same("table of "+path, m.OwnerReferences, m.Annotations) })
	}
	if got := kubectl(t, s.adapter, "get", "secret", "-n", namespace, "child", "-o", "jsonpath={.metadata.ownerReferences[0].uid}"); got != string(far.UID) {
		t.Errorf("kubectl reads the owner %q", got)
	}

	// The garbage collector runs. It keeps the object until the owner that it knows is deleted.
	s.orphan(t, namespace, far)
	kept("after the garbage collector", "child")
	made, err = secrets.Get(t.Context(), "child", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.OwnerReferences = []metav1.OwnerReference{near}
	if _, err = secrets.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := stored.Get(t.Context(), "child", metav1.GetOptions{}); err != nil || got.Annotations[ownersNote] != "" {
		t.Errorf("a removed owner still exists: %q (%v)", got.Annotations[ownersNote], err)
	}
	if err := k.CoreV1().ConfigMaps(namespace).Delete(t.Context(), near.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(t, secrets.Get, "child")
}

// tables passes the objects of a Table to f. For a watch it does so for each event.
func (s *clustersEnv) tables(t *testing.T, path string, f func(metav1.ObjectMeta)) {
	t.Helper()
	c := config(t, s.adapter)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	req.Header.Set("Authorization", "Bearer "+c.BearerToken)
	res, err := httpClient(t, c).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", path, res.Status)
	}
	rows := 0
	for d := json.NewDecoder(res.Body); ; {
		var answer struct {
			metav1.Table
			Type   string
			Object metav1.Table
		}
		if err := d.Decode(&answer); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		table := answer.Table
		if answer.Type == "BOOKMARK" {
			continue
		} else if answer.Type != "" {
			table = answer.Object
		}
		for _, row := range table.Rows {
			var object metav1.PartialObjectMetadata
			if err := json.Unmarshal(row.Object.Raw, &object); err != nil {
				t.Fatal(err)
			}
			f(object.ObjectMeta)
			rows++
		}
	}
	if rows == 0 {
		t.Errorf("%s: no rows", path)
	}
}

func asText(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

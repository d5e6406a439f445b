//go:build unix

package arctest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

const (
	setFinalizer   = "autoscalingrunnerset.actions.github.com/finalizer"
	idAnnotation   = "runner-scale-set-id"
	hashAnnotation = "runner-spec-hash"
	changeHash     = "actions.github.com/change-hash"
	unlimited      = 2147483647
)

// scaleSetView is one scale set and its objects at the start of a pass.
type scaleSetView struct {
	*ARC
	k       types.NamespacedName
	version string
	set     *unstructured.Unstructured

	listener   *unstructured.Unstructured // nil: none
	runnerSets []unstructured.Unstructured
	runners    []unstructured.Unstructured
}

// pass reconciles one scale set as far as possible now. again reports that pass waits for an end that no event
// announces.
func (a *ARC) pass(ctx context.Context, k types.NamespacedName) (again bool, err error) {
	a.working.RLock()
	defer a.working.RUnlock()
	a.mu.Lock()
	v := scaleSetView{ARC: a, k: k, version: a.version}
	a.mu.Unlock()
	if v.version == "" {
		return false, nil
	}
	if v.set, err = a.client.Resource(setResource).Namespace(k.Namespace).Get(ctx, k.Name, metav1.GetOptions{}); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, err
	}
	if err := v.look(ctx); err != nil {
		return false, err
	}
	if v.set.GetDeletionTimestamp() != nil {
		return v.end(ctx)
	}
	// The version gate: autoscalingrunnerset_controller.go, before it adds the finalizer.
	if !allowed(v.set.GetLabels()["app.kubernetes.io/version"], v.version) {
		a.note("%s: deleted: it is of version %q, and the controller of %s", k, v.set.GetLabels()["app.kubernetes.io/version"], v.version)
		return false, gone(a.client.Resource(setResource).Namespace(k.Namespace).Delete(ctx, k.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: new(v.set.GetUID())}}))
	}
	if !slices.Contains(v.set.GetFinalizers(), setFinalizer) {
		if err := v.patchSet(ctx, map[string]any{"metadata": map[string]any{"finalizers": append(v.set.GetFinalizers(), setFinalizer), "resourceVersion": v.set.GetResourceVersion()}}); err != nil {
			return false, err
		}
	}
	// 0.14: any change of spec or labels starts again from Pending, also for a set that was switched off.
	if v.phases() {
		if h := hash(v.set.Object["spec"], v.set.GetLabels()); v.set.GetAnnotations()[changeHash] != h {
			if err := v.status(ctx, setResource, v.set, map[string]any{"phase": "Pending"}); err != nil {
				return false, err
			}
			if err := v.patchSet(ctx, map[string]any{"metadata": map[string]any{"annotations": map[string]any{changeHash: h}}}); err != nil {
				return false, err
			}
		}
		if off, again, err := v.off(ctx); off || err != nil {
			return again, err
		}
	}
	secret, err := v.secret(ctx)
	if err != nil {
		return false, err
	}
	if v.id() == 0 {
		if err := v.register(ctx, secret); err != nil {
			return false, err
		}
	}
	return v.run(ctx)
}

// look reads the objects of a set.
func (v *scaleSetView) look(ctx context.Context) error {
	l, err := v.client.Resource(listenerResource).Namespace(v.o.Namespace).Get(ctx, v.listenerName(), metav1.GetOptions{})
	switch {
	case err == nil:
		v.listener = l
	case !apierrors.IsNotFound(err):
		return err
	}
	mine := metav1.ListOptions{LabelSelector: "actions.github.com/scale-set-name=" + v.k.Name + ",actions.github.com/scale-set-namespace=" + v.k.Namespace}
	sets, err := v.client.Resource(runnerSetResource).Namespace(v.k.Namespace).List(ctx, mine)
	if err != nil {
		return err
	}
	runners, err := v.client.Resource(runnerResource).Namespace(v.k.Namespace).List(ctx, mine)
	if err != nil {
		return err
	}
	v.runnerSets, v.runners = sets.Items, runners.Items
	slices.SortFunc(v.runnerSets, func(a, b unstructured.Unstructured) int { // newest first
		if d := b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time); d != 0 {
			return d
		}
		// For the same second: the order in which the fake created them.
		return int(number(&b, "metadata", "annotations", "order") - number(&a, "metadata", "annotations", "order"))
	})
	return nil
}

// phases reports whether sets have a phase in this version: from 0.14 on. Earlier versions have a status field state,
// but no release was seen to write it.
func (v *scaleSetView) phases() bool { return allowed("0.14.0", v.version) }

// id returns the scale set's id at GitHub, or 0 if there is none.
func (v *scaleSetView) id() int64 {
	n, err := strconv.ParseInt(v.set.GetAnnotations()[idAnnotation], 10, 64)
	if err != nil || n <= 0 {
		return 0
	}
	return n
}

// secret reads the credential from the namespace of the set.
func (v *scaleSetView) secret(ctx context.Context) (map[string][]byte, error) {
	name := text(v.set, "spec", "githubConfigSecret")
	s, err := v.client.Resource(secretResource).Namespace(v.k.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("the Secret %s does not exist", name)
	}
	if err != nil {
		return nil, err
	}
	var data struct{ Data map[string][]byte }
	b, err := json.Marshal(s.Object)
	if err != nil {
		return nil, err
	}
	return data.Data, json.Unmarshal(b, &data)
}

// register creates the scale set at GitHub, or uses the existing one with its name: ARC queries the name first. ARC
// sends the labels to GitHub only when it creates the scale set.
func (v *scaleSetView) register(ctx context.Context, secret map[string][]byte) error {
	place, name, group := text(v.set, "spec", "githubConfigUrl"), text(v.set, "spec", "runnerScaleSetName"), text(v.set, "spec", "runnerGroup")
	if name == "" {
		name = v.k.Name
	}
	labels := []string{name}
	if v.phases() {
		more, _, _ := unstructured.NestedStringSlice(v.set.Object, "spec", "runnerScaleSetLabels")
		labels = append(labels, slices.DeleteFunc(more, func(l string) bool { return l == name })...)
	}
	id, err := v.o.GitHub.EnsureScaleSet(place, group, name, labels, secret)
	if err != nil {
		return fmt.Errorf("scale set %s: %w", name, err)
	}
	if group == "" {
		group = "Default"
	}
	v.note("%s: scale set %d", v.k, id)
	more := map[string]any{}
	if u, err := url.Parse(place); err == nil {
		if org, repository, _ := strings.Cut(strings.Trim(u.Path, "/"), "/"); org != "" {
			more["actions.github.com/organization"] = org
			if repository != "" {
				more["actions.github.com/repository"] = repository
			}
		}
	}
	return v.patchSet(ctx, map[string]any{"metadata": map[string]any{"labels": more, "annotations": map[string]any{
		idAnnotation: strconv.FormatInt(id, 10), "actions.github.com/runner-scale-set-name": name, "actions.github.com/runner-group-name": group}}})
}

// end removes a set in ARC's order: the listener, the runners, the scale set at GitHub, and then the finalizer.
// Without the Secret it stops at the first runner that it must remove at GitHub.
func (v *scaleSetView) end(ctx context.Context) (again bool, err error) {
	if !slices.Contains(v.set.GetFinalizers(), setFinalizer) {
		return false, nil
	}
	if left, err := v.clear(ctx); left || err != nil {
		return left, err
	}
	v.note("%s: its finalizer is removed", v.k)
	rest := slices.DeleteFunc(v.set.GetFinalizers(), func(f string) bool { return f == setFinalizer })
	return false, gone(v.patchSet(ctx, map[string]any{"metadata": map[string]any{"finalizers": rest, "resourceVersion": v.set.GetResourceVersion()}}))
}

// clear removes all objects of a set except the set itself, also at GitHub.
func (v *scaleSetView) clear(ctx context.Context) (left bool, err error) {
	if v.listener != nil {
		if left, err := v.endListener(ctx); left || err != nil {
			return left, err
		}
	}
	if len(v.runnerSets) > 0 {
		for i := range v.runnerSets {
			if err := v.endRunnerSet(ctx, &v.runnerSets[i]); err != nil {
				return false, err
			}
		}
		return true, nil
	}
	id := v.id()
	if id == 0 {
		return false, nil
	}
	secret, err := v.secret(ctx)
	if err != nil {
		return false, err
	}
	if err := v.o.GitHub.DeleteScaleSet(text(v.set, "spec", "githubConfigUrl"), id, secret); err != nil {
		return false, fmt.Errorf("delete scale set %d: %w", id, err)
	}
	v.note("%s: scale set %d is deleted at GitHub", v.k, id)
	return false, v.patchSet(ctx, map[string]any{"metadata": map[string]any{"annotations": map[string]any{idAnnotation: nil}}})
}

// off switches off a set whose runners GitHub rejected, as in 0.14.2. Listener, runners and the scale set are
// removed. The set stays off until its spec or its labels change.
func (v *scaleSetView) off(ctx context.Context) (off, again bool, err error) {
	if text(v.set, "status", "phase") != "Outdated" {
		if len(v.runnerSets) == 0 || text(&v.runnerSets[0], "status", "phase") != "Outdated" || v.stale(&v.runnerSets[0]) {
			return false, false, nil
		}
		v.note("%s: off: GitHub rejects its runners", v.k)
		if err := v.status(ctx, setResource, v.set, map[string]any{"phase": "Outdated"}); err != nil {
			return true, false, err
		}
	}
	again, err = v.clear(ctx)
	return true, again, err
}

func (v *scaleSetView) patchSet(ctx context.Context, change map[string]any) error {
	u, err := v.patch(ctx, setResource, v.set, change, "manager")
	if err != nil {
		return err
	}
	v.set = u
	return nil
}

// hash returns a short hash of values that JSON can encode.
func hash(of ...any) string {
	b, err := json.Marshal(of)
	if err != nil {
		return err.Error()
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:5])
}

// runnerSetHash returns a hash that changes when ARC creates another runner set. It excludes the runner numbers and
// the content of the Secret.
func (v *scaleSetView) runnerSetHash() string {
	spec := map[string]any{}
	all, _, _ := unstructured.NestedMap(v.set.Object, "spec")
	maps.Copy(spec, all)
	for _, k := range []string{"minRunners", "maxRunners", "runnerScaleSetLabels", "listenerTemplate", "listenerMetrics"} {
		delete(spec, k)
	}
	return hash(spec)
}

// allowed is ARC's rule: major and minor version must be equal. Developer builds accept all versions.
func allowed(resource, build string) bool {
	if build == "dev" || resource == build || strings.HasPrefix(build, "canary-") {
		return true
	}
	minor := func(s string) string {
		parts := strings.SplitN(s, ".", 3)
		if len(parts) < 2 {
			return s + ".0"
		}
		return parts[0] + "." + parts[1]
	}
	return resource != "" && minor(resource) == minor(build)
}

// gone returns err, or nil if err is a NotFound error.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

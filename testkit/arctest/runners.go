//go:build unix

package arctest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A runner has two finalizers: one for its objects in the cluster, one for its registration at GitHub.
var runnerFinalizers = []any{"ephemeralrunner.actions.github.com/finalizer", "ephemeralrunner.actions.github.com/runner-registration-finalizer"}

// tries is how many failures of a runner's pod ARC accepts.
const tries = 5

func busy(r *unstructured.Unstructured) bool {
	return text(r, "status", "jobId") != "" && !done(r)
}

func done(r *unstructured.Unstructured) bool {
	switch text(r, "status", "phase") {
	case "Succeeded", "Failed", "Outdated":
		return true
	}
	return false
}

func (v *scaleSetView) of(runnerSet *unstructured.Unstructured) (mine []*unstructured.Unstructured) {
	for i := range v.runners {
		if slices.ContainsFunc(v.runners[i].GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == runnerSet.GetUID() }) {
			mine = append(mine, &v.runners[i])
		}
	}
	return mine
}

// counts returns the runner numbers in the status of a runner set.
func (v *scaleSetView) counts(runnerSet *unstructured.Unstructured) map[string]any {
	var pending, running, failed, outdated int64
	for _, r := range v.of(runnerSet) {
		switch text(r, "status", "phase") {
		case "Running":
			running++
		case "Failed":
			failed++
		case "Outdated":
			outdated++
		case "Succeeded":
		default:
			pending++
		}
	}
	c := map[string]any{"currentReplicas": pending + running, "pendingEphemeralRunners": pending, "runningEphemeralRunners": running, "failedEphemeralRunners": failed}
	return c
}

// scale brings the runners of all runner sets to the requested number. It reports whether work is left that no event
// announces.
func (v *scaleSetView) scale(ctx context.Context) (left bool, err error) {
	for i := range v.runnerSets {
		s := &v.runnerSets[i]
		if s.GetDeletionTimestamp() != nil {
			continue
		}
		again, err := v.scaleOne(ctx, s)
		if err != nil {
			return false, err
		}
		left = left || again
		status := v.counts(s)
		if v.phases() {
			status["phase"] = "Running"
			if slices.ContainsFunc(v.of(s), func(r *unstructured.Unstructured) bool { return text(r, "status", "phase") == "Outdated" }) {
				status["phase"] = "Outdated"
			}
		}
		if err := v.status(ctx, runnerSetResource, s, status); err != nil {
			return false, err
		}
	}
	return left, nil
}

func (v *scaleSetView) scaleOne(ctx context.Context, s *unstructured.Unstructured) (left bool, err error) {
	var alive []*unstructured.Unstructured
	for _, r := range v.of(s) {
		if r.GetDeletionTimestamp() == nil && !done(r) {
			alive = append(alive, r)
		}
	}
	// ARC applies the number only when the listener has written since the last runner was created. So a runner that
	// ends without a listener is not replaced, and its object stays until there is a listener again.
	if patch := number(s, "spec", "patchID"); patch == 0 || patch != v.latest(s) {
		if err := v.adjust(ctx, s, alive); err != nil {
			return false, err
		}
	}
	for _, r := range v.of(s) {
		again, err := v.runner(ctx, r)
		if err != nil {
			return false, err
		}
		left = left || again
	}
	return left, nil
}

// latest returns the patch id of the listener's write for which the newest runner was created.
func (v *scaleSetView) latest(s *unstructured.Unstructured) (n int64) {
	for _, r := range v.of(s) {
		n = max(n, number(r, "metadata", "annotations", "actions.github.com/patch-id"))
	}
	return n
}

// adjust creates and deletes runners.
func (v *scaleSetView) adjust(ctx context.Context, s *unstructured.Unstructured, alive []*unstructured.Unstructured) error {
	for _, r := range v.of(s) {
		if text(r, "status", "phase") == "Succeeded" && r.GetDeletionTimestamp() == nil {
			if err := v.drop(ctx, r); err != nil {
				return err
			}
		}
	}
	want := int(number(s, "spec", "replicas"))
	// Idle runners are deleted, newest first. Runners with a job stay.
	for i := len(alive) - 1; i >= 0 && len(alive) > want; i-- {
		if !busy(alive[i]) {
			if err := v.drop(ctx, alive[i]); err != nil {
				return err
			}
			alive = slices.Delete(alive, i, i+1)
		}
	}
	for n := len(alive); n < want; n++ {
		if err := v.makeRunner(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (v *scaleSetView) makeRunner(ctx context.Context, s *unstructured.Unstructured) error {
	spec, _, _ := unstructured.NestedMap(s.Object, "spec", "ephemeralRunnerSpec")
	u, err := v.create(ctx, runnerResource, "EphemeralRunner", v.k.Namespace, map[string]any{"generateName": s.GetName() + "-runner-", "labels": v.ours("runner"),
		"annotations": map[string]any{"actions.github.com/patch-id": strconv.FormatInt(number(s, "spec", "patchID"), 10)}, "finalizers": runnerFinalizers, "ownerReferences": controlledBy(s)}, map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	v.runners = append(v.runners, *u)
	return nil
}

// drop deletes a runner. This starts at GitHub and needs the credential.
func (v *scaleSetView) drop(ctx context.Context, r *unstructured.Unstructured) error {
	if number(r, "status", "runnerId") > 0 && !done(r) {
		if _, err := v.secret(ctx); err != nil {
			return err
		}
	}
	return gone(v.client.Resource(runnerResource).Namespace(v.k.Namespace).Delete(ctx, r.GetName(), metav1.DeleteOptions{}))
}

// endRunnerSet deletes a runner set. Runners with a job stay until the job ends, and the set stays until all runners
// are gone.
func (v *scaleSetView) endRunnerSet(ctx context.Context, s *unstructured.Unstructured) error {
	if s.GetDeletionTimestamp() == nil {
		if err := v.client.Resource(runnerSetResource).Namespace(v.k.Namespace).Delete(ctx, s.GetName(), metav1.DeleteOptions{}); gone(err) != nil {
			return err
		}
	}
	left := v.of(s)
	for _, r := range left {
		if r.GetDeletionTimestamp() == nil && !busy(r) {
			if err := v.drop(ctx, r); err != nil {
				return err
			}
		}
		if _, err := v.runner(ctx, r); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		return v.status(ctx, runnerSetResource, s, v.counts(s))
	}
	_, err := v.patch(ctx, runnerSetResource, s, map[string]any{"metadata": map[string]any{"finalizers": nil}}, "manager")
	return gone(err)
}

// runner reconciles one runner as far as possible now.
func (v *scaleSetView) runner(ctx context.Context, r *unstructured.Unstructured) (left bool, err error) {
	if r.GetDeletionTimestamp() != nil {
		return v.endRunner(ctx, r)
	}
	if done(r) {
		return false, nil
	}
	pod, err := v.client.Resource(podResource).Namespace(v.k.Namespace).Get(ctx, r.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		pod, err = v.makePod(ctx, r)
	}
	if err != nil || pod == nil {
		return pod == nil, err
	}
	v.mu.Lock()
	crash, reject := v.crashing[v.k], v.outdated[v.k] && v.phases()
	v.mu.Unlock()
	switch {
	case busy(r):
		return false, nil
	case reject:
		// Exit code 7: ephemeralrunner_controller.go, from 0.14 on.
		return true, v.status(ctx, runnerResource, r, map[string]any{"phase": "Outdated", "ready": false, "reason": "Outdated", "message": "Runner is deprecated"})
	case crash != "":
		if time.Since(pod.GetCreationTimestamp().Time) < time.Second {
			return true, nil // ARC waits between attempts, longer each time
		}
		return true, v.fail(ctx, r, pod, crash)
	}
	if err := v.ready(ctx, pod); err != nil {
		return false, err
	}
	if text(pod, "spec", "nodeName") != "" && !isReady(pod) {
		return true, nil
	}
	id := number(r, "status", "runnerId")
	if id == 0 {
		v.mu.Lock()
		v.ARC.runners++
		id = v.ARC.runners
		v.mu.Unlock()
	}
	return false, v.status(ctx, runnerResource, r, map[string]any{"phase": "Running", "ready": true, "runnerId": id, "runnerName": r.GetName()})
}

func (v *scaleSetView) makePod(ctx context.Context, r *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	labels, _, _ := unstructured.NestedMap(r.Object, "spec", "metadata", "labels")
	if labels == nil {
		labels = map[string]any{}
	}
	for k, l := range r.GetLabels() {
		labels[k] = l
	}
	labels["actions-ephemeral-runner"] = "True"
	if v.o.Confined { // the runner's registration; garbage-collected with the runner
		if _, err := v.create(ctx, secretResource, "Secret", v.k.Namespace, map[string]any{"name": r.GetName(), "ownerReferences": controlledBy(r)}, map[string]any{"stringData": map[string]any{"jitToken": "what a runner registers with"}}); err != nil {
			return nil, err
		}
	}
	spec, _, _ := unstructured.NestedMap(r.Object, "spec", "spec")
	if containers, ok := spec["containers"].([]any); ok {
		for _, c := range containers {
			if c, ok := c.(map[string]any); ok && c["name"] == "runner" {
				env, _ := c["env"].([]any)
				c["env"] = append(env, map[string]any{"name": "ACTIONS_RUNNER_INPUT_JITCONFIG", "value": "what a runner registers with"})
			}
		}
	}
	return v.create(ctx, podResource, "Pod", v.k.Namespace, map[string]any{"name": r.GetName(), "labels": labels, "ownerReferences": controlledBy(r)}, map[string]any{"spec": spec})
}

// fail lets the pod of a runner fail once. After five failures, ARC 0.13 leaves the runner as Failed. ARC 0.14
// deletes the runner and creates another one.
func (v *scaleSetView) fail(ctx context.Context, r, pod *unstructured.Unstructured, reason string) error {
	failures, _, _ := unstructured.NestedMap(r.Object, "status", "failures")
	if failures == nil {
		failures = map[string]any{}
	}
	failures[string(pod.GetUID())] = time.Now().UTC().Format(time.RFC3339)
	if _, err := v.remove(ctx, v.k.Namespace, r.GetName()); err != nil {
		return err
	}
	if len(failures) < tries {
		return v.status(ctx, runnerResource, r, map[string]any{"phase": "Pending", "failures": failures, "reason": reason, "message": "the pod failed: " + reason})
	}
	v.note("%s: a runner failed %d times: %s", v.k, len(failures), reason)
	if v.phases() {
		return v.drop(ctx, r)
	}
	return v.status(ctx, runnerResource, r, map[string]any{"phase": "Failed", "failures": failures, "reason": "TooManyPodFailures", "message": "Pod has failed to start more than 5 times: " + reason})
}

// endRunner removes a runner after its job. It needs the credential to remove the registration at GitHub, unless the
// runner has completed a job: then GitHub has already removed it.
func (v *scaleSetView) endRunner(ctx context.Context, r *unstructured.Unstructured) (left bool, err error) {
	if busy(r) {
		return true, nil
	}
	if number(r, "status", "runnerId") > 0 && text(r, "status", "phase") != "Succeeded" {
		if _, err := v.secret(ctx); err != nil {
			return false, fmt.Errorf("remove runner %s: %w", r.GetName(), err)
		}
	}
	if gone, err := v.remove(ctx, v.k.Namespace, r.GetName()); !gone || err != nil {
		return true, err
	}
	_, err = v.patch(ctx, runnerResource, r, map[string]any{"metadata": map[string]any{"finalizers": nil}}, "manager")
	return true, gone(err)
}

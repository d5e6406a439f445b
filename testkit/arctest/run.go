//go:build unix

package arctest

import (
	"context"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	listenerFinalizer  = "autoscalinglistener.actions.github.com/finalizer"
	runnerSetFinalizer = "ephemeralrunner.actions.github.com/finalizer"
)

// run maintains runner set, listener and runners of a registered set.
func (v *scaleSetView) run(ctx context.Context) (again bool, err error) {
	if len(v.runnerSets) == 0 {
		if err := v.makeRunnerSet(ctx); err != nil {
			return false, err
		}
	}
	// A listener with a different spec is deleted with every strategy. The runner numbers are part of its hash, so a
	// change of capacity creates a new listener.
	if v.listener != nil && (v.listener.GetDeletionTimestamp() != nil || v.listener.GetAnnotations()[hashAnnotation] != hash(v.set.Object["spec"])) {
		if left, err := v.endListener(ctx); left || err != nil {
			return left, err
		}
	}
	newest := &v.runnerSets[0]
	if v.stale(newest) || newest.GetDeletionTimestamp() != nil {
		if v.drains(newest) {
			v.note("%s: waits for the jobs of its runners before it creates others", v.k)
			if _, err := v.patch(ctx, runnerSetResource, newest, map[string]any{"spec": map[string]any{"replicas": 0, "patchID": 0}}, "manager"); err != nil {
				return false, gone(err)
			}
			newest.Object["spec"].(map[string]any)["replicas"], newest.Object["spec"].(map[string]any)["patchID"] = int64(0), int64(0)
			return v.scale(ctx)
		}
		if err := v.makeRunnerSet(ctx); err != nil {
			return false, err
		}
		newest = &v.runnerSets[0]
	}
	for i := 1; i < len(v.runnerSets); i++ {
		if err := v.endRunnerSet(ctx, &v.runnerSets[i]); err != nil {
			return false, err
		}
		again = true
	}
	if v.listener == nil {
		if v.drains(newest) {
			v.note("%s: waits for the jobs of its runners before it listens", v.k)
			return v.scale(ctx)
		}
		if err := v.makeListener(ctx, newest); err != nil {
			return false, err
		}
	}
	up, err := v.listen(ctx, newest)
	if err != nil {
		return false, err
	}
	left, err := v.scale(ctx)
	if err != nil {
		return false, err
	}
	if err := v.startAll(ctx, v.k); err != nil {
		return false, err
	}
	status := v.counts(newest)
	delete(status, "currentReplicas")
	status["currentRunners"] = number(newest, "status", "currentReplicas")
	if v.phases() {
		status["phase"] = "Running"
	}
	return again || left || !up, v.status(ctx, setResource, v.set, status)
}

func (v *scaleSetView) stale(runnerSet *unstructured.Unstructured) bool {
	return runnerSet.GetAnnotations()[hashAnnotation] != v.runnerSetHash()
}

// drains reports whether ARC waits for remaining runners, as with the strategy eventual.
func (v *scaleSetView) drains(runnerSet *unstructured.Unstructured) bool {
	return v.o.Eventual && number(runnerSet, "status", "runningEphemeralRunners")+number(runnerSet, "status", "pendingEphemeralRunners") > 0
}

func (v *scaleSetView) makeRunnerSet(ctx context.Context) error {
	template, _, _ := unstructured.NestedMap(v.set.Object, "spec", "template")
	spec := map[string]any{"githubConfigUrl": text(v.set, "spec", "githubConfigUrl"), "githubConfigSecret": text(v.set, "spec", "githubConfigSecret"), "runnerScaleSetId": v.id()}
	for k, part := range template { // the pod template is inline there
		spec[k] = part
	}
	order := 1
	if len(v.runnerSets) > 0 {
		order += int(number(&v.runnerSets[0], "metadata", "annotations", "order"))
	}
	u, err := v.create(ctx, runnerSetResource, "EphemeralRunnerSet", v.k.Namespace, map[string]any{"generateName": v.k.Name + "-", "labels": v.ours("runner-set"),
		"annotations": map[string]any{hashAnnotation: v.runnerSetHash(), "order": strconv.Itoa(order)}, "finalizers": []any{runnerSetFinalizer}, "ownerReferences": controlledBy(v.set)},
		map[string]any{"spec": map[string]any{"replicas": 0, "patchID": 0, "ephemeralRunnerSpec": spec}})
	if err != nil {
		return err
	}
	v.note("%s: runner set %d", v.k, order)
	v.runnerSets = append([]unstructured.Unstructured{*u}, v.runnerSets...)
	return nil
}

func (v *scaleSetView) listenerName() string {
	return v.k.Name + "-" + hash(v.k.Namespace, text(v.set, "spec", "runnerGroup"), text(v.set, "spec", "githubConfigUrl"))[:8] + "-listener"
}

// makeListener creates the listener. It omits numbers that are 0. A set without a maximum gets the largest number.
func (v *scaleSetView) makeListener(ctx context.Context, runnerSet *unstructured.Unstructured) error {
	least, most := number(v.set, "spec", "minRunners"), int64(unlimited)
	if n, there, _ := unstructured.NestedInt64(v.set.Object, "spec", "maxRunners"); there {
		most = n
	}
	spec := map[string]any{"githubConfigUrl": text(v.set, "spec", "githubConfigUrl"), "githubConfigSecret": text(v.set, "spec", "githubConfigSecret"), "runnerScaleSetId": v.id(),
		"autoscalingRunnerSetNamespace": v.k.Namespace, "autoscalingRunnerSetName": v.k.Name, "ephemeralRunnerSetName": runnerSet.GetName(), "image": "gha-runner-scale-set-controller:" + v.version}
	if least != 0 {
		spec["minRunners"] = least
	}
	if most != 0 {
		spec["maxRunners"] = most
	}
	u, err := v.create(ctx, listenerResource, "AutoscalingListener", v.o.Namespace, map[string]any{"name": v.listenerName(), "labels": v.ours("runner-scale-set-listener"),
		"annotations": map[string]any{hashAnnotation: hash(v.set.Object["spec"])}, "finalizers": []any{listenerFinalizer}}, map[string]any{"spec": spec})
	if err != nil || u == nil {
		return err
	}
	v.note("%s: listener for %d to %d runners", v.k, least, most)
	v.listener = u
	return nil
}

// endListener deletes the listener. The listener stays until its pod is gone.
func (v *scaleSetView) endListener(ctx context.Context) (left bool, err error) {
	listeners := v.client.Resource(listenerResource).Namespace(v.o.Namespace)
	if v.listener.GetDeletionTimestamp() == nil {
		if err := listeners.Delete(ctx, v.listener.GetName(), metav1.DeleteOptions{}); err != nil {
			return true, gone(err)
		}
		v.note("%s: listener ends", v.k)
	}
	v.mu.Lock()
	stay := v.linger
	v.mu.Unlock()
	if stay {
		return true, nil
	}
	if gone, err := v.remove(ctx, v.o.Namespace, v.listener.GetName()); !gone || err != nil {
		return true, err
	}
	if v.o.Confined {
		if err := v.strip(ctx); err != nil {
			return true, err
		}
	}
	_, err = v.patch(ctx, listenerResource, v.listener, map[string]any{"metadata": map[string]any{"finalizers": nil}}, "manager")
	if gone(err) != nil {
		return true, err
	}
	v.note("%s: listener is deleted", v.k)
	v.listener = nil
	return false, nil
}

// listen maintains the listener's pod and does the listener's work: it takes jobs, and requests as many runners as it
// has jobs. It reports whether the pod is up. A listener whose maximum is below its minimum ends at once.
func (v *scaleSetView) listen(ctx context.Context, newest *unstructured.Unstructured) (up bool, err error) {
	if v.listener == nil {
		return false, nil
	}
	least, most := number(v.listener, "spec", "minRunners"), number(v.listener, "spec", "maxRunners")
	if most < least {
		v.note("%s: its listener ends: %d is less than %d", v.k, most, least)
		return true, nil
	}
	pod, err := v.client.Resource(podResource).Namespace(v.o.Namespace).Get(ctx, v.listener.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if v.o.Confined {
			if err := v.equip(ctx); err != nil {
				return false, err
			}
		}
		labels := map[string]any{}
		for k, l := range v.listener.GetLabels() {
			labels[k] = l
		}
		container := map[string]any{"name": "listener", "image": text(v.listener, "spec", "image"), "command": []any{"/ghalistener"}}
		if v.o.Metrics {
			port, err := v.serveMetrics(v.k)
			if err != nil {
				return false, err
			}
			container["ports"] = []any{map[string]any{"name": "metrics", "containerPort": port, "protocol": "TCP"}}
		}
		pod, err = v.create(ctx, podResource, "Pod", v.o.Namespace, map[string]any{"name": v.listener.GetName(), "labels": labels, "ownerReferences": controlledBy(v.listener)},
			map[string]any{"spec": map[string]any{"restartPolicy": "Never", "containers": []any{container}}})
	}
	if err != nil || pod == nil {
		return false, err
	}
	if pod.GetDeletionTimestamp() != nil {
		return false, nil
	}
	if err := v.ready(ctx, pod); err != nil {
		return false, err
	}
	if text(pod, "spec", "nodeName") != "" && !isReady(pod) {
		return false, nil
	}
	jobs := v.take(v.k, v.id(), int(most))
	return true, v.ask(ctx, newest, min(most, least+int64(jobs)))
}

// ask sets the requested number of runners. It writes when the number changes, and when a runner must replace one
// that has ended.
func (v *scaleSetView) ask(ctx context.Context, runnerSet *unstructured.Unstructured, n int64) error {
	alive, ended := int64(0), false
	for _, r := range v.of(runnerSet) {
		switch {
		case !done(r) && r.GetDeletionTimestamp() == nil:
			alive++
		case text(r, "status", "phase") == "Succeeded" && r.GetDeletionTimestamp() == nil:
			ended = true
		}
	}
	if number(runnerSet, "spec", "replicas") == n && alive >= n && !ended {
		return nil
	}
	u, err := v.patch(ctx, runnerSetResource, runnerSet, map[string]any{"spec": map[string]any{"replicas": n, "patchID": number(runnerSet, "spec", "patchID") + 1}}, "ghalistener")
	if err != nil {
		return gone(err)
	}
	v.note("%s: %d runners", v.k, n)
	runnerSet.Object = u.Object
	return nil
}

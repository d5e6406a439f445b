package controller

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/relay/config"
)

// gather reads the current objects of the group.
func (l *groupReconciliation) gather(ctx context.Context) error {
	err := l.readObjects(ctx)
	switch forbidden := apierrors.IsForbidden(err); {
	case forbidden && l.group.DeletionTimestamp != nil && l.namespaceDeleting(ctx):
		// The rights were deleted with the namespace, and so will be its contents. The status
		// contains the devices at Tailscale, and keys can be found by their description.
		l.clearObjects()
	case forbidden: // reconcile again when the rights are back
		l.clearObjects()
		l.facts, l.forbidden = gateway.GroupFacts{}, true
		l.requeueAt(l.Now().Add(forbiddenRequeue))
		return nil
	case err != nil:
		return err
	}
	l.facts = l.groupFacts()
	return nil
}

// namespaceDeleting reports whether the group's namespace is being deleted.
func (l *groupReconciliation) namespaceDeleting(ctx context.Context) bool {
	ns := partialMetadata("Namespace")
	return l.cache.Get(ctx, client.ObjectKey{Name: l.group.Namespace}, ns) == nil && ns.DeletionTimestamp != nil
}

// clearObjects clears the objects that were read.
func (l *groupReconciliation) clearObjects() {
	l.set, l.pods, l.state, l.config = nil, map[int]*corev1.Pod{}, map[int]*corev1.Secret{}, map[int]*corev1.Secret{}
	l.certs = map[string]*corev1.Secret{}
}

func (l *groupReconciliation) readObjects(ctx context.Context) error {
	g := l.group
	l.clearObjects()
	set, err := find[appsv1.StatefulSet](ctx, l.direct, client.ObjectKeyFromObject(g))
	if err != nil {
		return fmt.Errorf("get the StatefulSet: %w", err)
	}
	if set != nil && metav1.IsControlledBy(set, g) {
		l.set = set
	}
	var pods corev1.PodList
	if err := l.direct.List(ctx, &pods, client.InNamespace(g.Namespace), client.MatchingLabels(workload.PodLabels(g.UID))); err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	for _, p := range pointers(pods.Items) {
		if n, ok := ordinalOf(g.Name, p.Name); ok {
			l.pods[n] = p
		}
	}
	var secrets corev1.SecretList
	if err := l.direct.List(ctx, &secrets, client.InNamespace(g.Namespace), client.MatchingLabels{v1alpha1.ManagedLabel: "true", v1alpha1.ProxyGroupLabel: g.Name}); err != nil {
		return fmt.Errorf("list the Secrets: %w", err)
	}
	for _, s := range pointers(secrets.Items) {
		if !metav1.IsControlledBy(s, g) {
			continue
		}
		if n, ok := ordinalOf(g.Name, s.Name); ok && s.Labels[v1alpha1.SecretTypeLabel] == v1alpha1.SecretTypeState {
			l.state[n] = s
		} else if n, ok := ordinalOf(g.Name, strings.TrimSuffix(s.Name, "-config")); ok && s.Labels[v1alpha1.SecretTypeLabel] == v1alpha1.SecretTypeConfig {
			l.config[n] = s
		} else if s.Labels[v1alpha1.SecretTypeLabel] == v1alpha1.SecretTypeCert {
			l.certs[s.Name] = s
		}
	}
	return nil
}

// ordinalOf parses the ordinal in <group>-<ordinal>.
func ordinalOf(group, name string) (int, bool) {
	text, ok := strings.CutPrefix(name, group+"-")
	n, err := strconv.Atoi(text)
	return n, ok && err == nil && n >= 0 && n < 1000 && strconv.Itoa(n) == text
}

func (l *groupReconciliation) groupFacts() gateway.GroupFacts {
	g := l.group
	f := gateway.GroupFacts{
		Deleting: g.DeletionTimestamp != nil, HasFinalizer: controllerutil.ContainsFinalizer(g, v1alpha1.Finalizer),
		SkipRemote: g.Annotations[v1alpha1.SkipRemoteCleanupAnnotation] == "true",
		Accepted:   l.report.Accepted.IsTrue(), Replicas: int(workload.Replicas(g)), NotBefore: l.pausedUntil(),
		HasClient: l.api != nil && (g.DeletionTimestamp != nil || l.tailnetReady()),
		Ordinals:  map[int]gateway.RelayReplica{},
	}
	if l.set != nil {
		f.SetExists, f.SetDeleting, f.SetReplicas = true, l.set.DeletionTimestamp != nil, int(deref(l.set.Spec.Replicas, 0))
	}
	for i := range f.Replicas {
		f.Ordinals[i] = gateway.RelayReplica{}
	}
	change := func(i int, do func(*gateway.RelayReplica)) {
		r := f.Ordinals[i]
		do(&r)
		f.Ordinals[i] = r
	}
	for i, pod := range l.pods {
		change(i, func(r *gateway.RelayReplica) { r.Pod, r.Ready = string(pod.UID), podReady(pod) })
	}
	recorded := map[string]bool{}
	for _, d := range g.Status.Devices {
		if d.NodeID != "" && !l.deletedDevices[d.NodeID] {
			f.Recorded = append(f.Recorded, gateway.RecordedDevice{Ordinal: int(d.Ordinal), Node: d.NodeID})
			recorded[d.NodeID] = true
		}
	}
	for i, s := range l.state {
		change(i, func(r *gateway.RelayReplica) {
			r.State = true
			r.Node, r.WriterPod, r.Reissue = string(s.Data[config.DeviceID]), string(s.Data[config.PodUID]), string(s.Data[config.Reissue])
			r.Joined = len(s.Data["_current-profile"]) > 0
			r.DeviceGone, r.DeviceExists = l.gone[r.Node], l.existing[r.Node]
			if !f.Accepted && !recorded[r.Node] || l.deletedDevices[r.Node] {
				// A tenant that can write Secrets in a namespace must not be able to point the
				// operator at a device of a tailnet that the namespace may not use.
				r.Node = ""
			}
		})
	}
	for i, s := range l.config {
		change(i, func(r *gateway.RelayReplica) { r.Config, r.Key = true, authKeyOf(s) })
	}
	if f.Deleting && f.HasFinalizer && !l.keysDeleted {
		// The Secret with the key's record may already be deleted, with the namespace or manually.
		// No key was created since the deletion began.
		for i := range max(f.Replicas, 1) {
			if l.config[i] == nil {
				change(i, func(r *gateway.RelayReplica) {
					r.Key = gateway.AuthKeyState{Pending: true, Until: g.DeletionTimestamp.Add(gateway.AuthKeyLifetime)}
				})
			}
		}
	}
	return f
}

func podReady(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

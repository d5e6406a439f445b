package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
)

// unusedAnnotation is the time at which a group that the operator created lost its last user.
const unusedAnnotation = "gateway.tailscale.com/unused-since"

// createDesired creates a group that services need and that does not exist.
func (c *groupReconciler) createDesired(ctx context.Context, key types.NamespacedName, result *gateway.Result) error {
	w, ok := result.DesiredGroups[key.Name]
	if !ok || key.Namespace != c.Namespace {
		return nil
	}
	if err := c.applyDesired(ctx, w, nil); err != nil {
		return err
	}
	c.Log.Info("proxy group created", "group", key.String(), "users", len(w.Services))
	return nil
}

// updateDesired updates a group that the operator created for services. It deletes the group some
// time after its last user. unused is true if the reconcile must end here.
func (l *groupReconciliation) updateDesired(ctx context.Context) (unused bool, err error) {
	g := l.group
	if g.Namespace != l.Namespace || g.Labels[v1alpha1.ManagedLabel] != "true" || g.DeletionTimestamp != nil {
		return false, nil
	}
	since, marked := g.Annotations[unusedAnnotation]
	if w, desired := l.result.DesiredGroups[g.Name]; desired {
		if marked {
			if err := l.patch(ctx, "mark it as used", func() { delete(l.group.Annotations, unusedAnnotation) }); err != nil {
				return true, err
			}
		}
		return false, l.applyDesired(ctx, w, g)
	}
	if g.Annotations[appliedHashAnnotation] == "" {
		return false, nil // another party created it with the operator's label
	}
	at, err := time.Parse(time.RFC3339, since)
	if err != nil {
		at = l.Now()
		if err := l.patch(ctx, "mark it as unused", func() {
			metav1.SetMetaDataAnnotation(&l.group.ObjectMeta, unusedAnnotation, at.UTC().Format(time.RFC3339))
		}); err != nil {
			return true, err
		}
	}
	if end := at.Add(gateway.UnusedGroupGrace); l.Now().Before(end) {
		l.requeueAt(end)
		return false, nil
	}
	l.Log.Info("deleting an unused proxy group", "group", g.Namespace+"/"+g.Name)
	return true, kube.Delete(ctx, l.direct, g)
}

// applyDesired applies a wanted group if it differs from current. current is nil if the group does
// not exist.
func (c *groupReconciler) applyDesired(ctx context.Context, w gateway.DesiredGroup, current *v1alpha1.TailscaleProxyGroup) error {
	g := &v1alpha1.TailscaleProxyGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: w.Name, Labels: map[string]string{v1alpha1.ManagedLabel: "true", v1alpha1.TailnetLabel: w.Tailnet}},
		Spec: v1alpha1.TailscaleProxyGroupSpec{
			Type: w.Type, Replicas: new(w.Replicas), TailnetRef: &v1alpha1.TailnetReference{Name: w.Tailnet}, TailnetTarget: w.Target.DeepCopy(),
			Consumers: v1alpha1.NamespaceSelector{From: v1alpha1.NamespacesSelector, Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: w.Consumers}}}},
		},
	}
	g.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TailscaleProxyGroup"))
	var is client.Object // stays a nil interface if current is nil
	if current != nil {
		g.ResourceVersion, is = current.ResourceVersion, current
	}
	wrote, err := applyIfChanged(ctx, c.direct, g, is)
	if err != nil {
		return fmt.Errorf("apply the proxy group: %w", err)
	}
	if !wrote || current == nil {
		return nil
	}
	return c.direct.Get(ctx, client.ObjectKeyFromObject(current), current)
}

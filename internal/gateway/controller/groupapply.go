package controller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/kube"
)

// appliedHashAnnotation contains the hash of the applied object, so that removed fields are detected
// too.
const appliedHashAnnotation = "gateway.tailscale.com/applied"

// portsKey is the key of the port table in the group's ConfigMap.
const portsKey = "ports"

// applyObjects applies everything that a pod of the group needs: its configuration, its Secrets and its
// rights. Keys come next, and the pods last.
func (l *groupReconciliation) applyObjects(ctx context.Context) error {
	table, current, err := l.allocatePorts(ctx)
	if err != nil {
		return err
	}
	data, err := l.relayConfig(ctx, table, current)
	if err != nil {
		return err
	}
	objects, err := l.render(table)
	if err != nil {
		return err
	}
	if err := l.applyCertificates(ctx, objects); err != nil {
		return err
	}
	cm := objects.ConfigMap
	cm.Data = data
	if current != nil {
		cm.ResourceVersion = current.ResourceVersion // fails if the table changed since it was read
	}
	if err := l.ensure(ctx, cm); err != nil {
		return err
	}
	if len(l.conflicts) == 0 {
		l.table = &table // the table is stored
	}
	for _, o := range objects.Unchanged() {
		if o.GetObjectKind().GroupVersionKind().Kind == "StatefulSet" {
			continue
		}
		if err := l.ensure(ctx, o); err != nil {
			return err
		}
	}
	for i, s := range objects.Config {
		if previous := l.config[i]; previous != nil { // keep the key, which an apply without it would remove
			s.Data, s.ResourceVersion = previous.Data, previous.ResourceVersion
			for _, name := range []string{v1alpha1.AuthKeyIDAnnotation, v1alpha1.AuthKeyExpiresAnnotation} {
				if v, ok := previous.Annotations[name]; ok {
					metav1.SetMetaDataAnnotation(&s.ObjectMeta, name, v)
				}
			}
		}
		if err := l.ensure(ctx, s); err != nil {
			return err
		}
	}
	if objects.DisruptionBudget == nil {
		return l.deleteDisruptionBudget(ctx)
	}
	return nil
}

// applyStatefulSet applies the StatefulSet.
func (l *groupReconciliation) applyStatefulSet(ctx context.Context) error {
	objects, err := l.render(gateway.PortTable{})
	if err != nil {
		return err
	}
	return l.ensure(ctx, objects.StatefulSet)
}

// render renders the desired objects of the group. Rights remain for ordinals whose pods still
// end.
func (l *groupReconciliation) render(table gateway.PortTable) (*workload.Objects, error) {
	ordinals := workload.Replicas(l.group)
	for i := range l.facts.Ordinals {
		ordinals = max(ordinals, min(int32(i)+1, workload.MaxReplicas))
	}
	return workload.Render(
		l.group,
		l.Relays,
		workload.Plan{
			Tailnet:     l.report.Tailnet,
			Ordinals:    ordinals,
			Ports:       mappedPorts(table),
			CertDomains: slices.Collect(maps.Keys(l.issue)),
		},
	)
}

func mappedPorts(table gateway.PortTable) (out []v1alpha1.MappedPort) {
	for _, p := range table.Ports {
		if p.Until.IsZero() {
			out = append(
				out,
				v1alpha1.MappedPort{
					Service:    p.Service,
					Protocol:   v1alpha1.PortProtocol(p.Protocol),
					MatchPort:  int32(p.MatchPort),
					TargetPort: int32(p.TargetPort),
				},
			)
		}
	}
	return out
}

// allocatePorts allocates the ports of the group, starting from the table in its ConfigMap. If that table
// is invalid, it uses the ports in the status.
func (l *groupReconciliation) allocatePorts(ctx context.Context) (next gateway.PortTable, current *corev1.ConfigMap, err error) {
	current, err = find[corev1.ConfigMap](
		ctx,
		l.direct,
		client.ObjectKey{Namespace: l.group.Namespace, Name: workload.ConfigMapName(l.group)},
	)
	if err != nil {
		return next, nil, fmt.Errorf("get the ConfigMap: %w", err)
	}
	if l.group.Spec.Type != v1alpha1.Egress {
		return next, current, nil
	}
	table := portTable(l.group.Status.Ports)
	if text, ok := cmp.Or(current, &corev1.ConfigMap{}).Data[portsKey]; ok {
		if stored, err := gateway.ParsePortTable([]byte(text)); err != nil {
			l.Log.Warn(
				"the port table in the ConfigMap cannot be read; using the table in the status",
				"group",
				l.group.Namespace+"/"+l.group.Name,
				"err",
				err,
			)
		} else {
			table = stored
		}
	}
	next, refused, wake := table.Allocate(l.result.RequiredPorts[objectName(l.group)], l.Now().Truncate(time.Second))
	l.refused = refused
	l.requeueAt(wake)
	for _, p := range next.Ports {
		if _, previous := table.Lookup(p.PortKey); !previous && p.Until.IsZero() {
			l.allocated++
		}
	}
	return next, current, nil
}

// withdrawServices removes all services from the configuration of a group that is no longer accepted. Its
// devices stay, because the cause may be temporary.
func (l *groupReconciliation) withdrawServices(ctx context.Context) error {
	table, current, err := l.allocatePorts(ctx)
	if err != nil || current == nil || !metav1.IsControlledBy(current, l.group) {
		return err
	}
	want := current.DeepCopy()
	for _, key := range []string{"egress-services", "serve-config", "ingress-config.json"} {
		if _, ok := want.Data[key]; ok {
			want.Data[key] = "{}"
		}
	}
	if l.group.Spec.Type == v1alpha1.Egress {
		want.Data[portsKey] = string(table.Encode())
	}
	if text, ok := want.Data["relay.json"]; ok {
		if want.Data["relay.json"], err = withoutServices(text); err != nil {
			return err
		}
	}
	if !maps.Equal(current.Data, want.Data) {
		if err := l.direct.Patch(ctx, want, lockedPatch(current)); err != nil {
			return fmt.Errorf("withdraw its services: %w", err)
		}
	}
	l.table = &table
	return nil
}

func (l *groupReconciliation) deleteDisruptionBudget(ctx context.Context) error {
	pdb, err := find[policyv1.PodDisruptionBudget](ctx, l.direct, client.ObjectKeyFromObject(l.group))
	if err != nil || pdb == nil || !metav1.IsControlledBy(pdb, l.group) {
		return err
	}
	return l.delete(ctx, pdb)
}

// ensure applies an object if it differs. It never changes an object of another owner.
func (l *groupReconciliation) ensure(ctx context.Context, want client.Object) error {
	name := want.GetObjectKind().GroupVersionKind().Kind + " " + want.GetName()
	current := l.currentSecret(want)
	if current == nil {
		current = reflect.New(reflect.TypeOf(want).Elem()).Interface().(client.Object)
		if err := l.direct.Get(ctx, client.ObjectKeyFromObject(want), current); apierrors.IsNotFound(err) {
			current = nil
		} else if err != nil {
			return fmt.Errorf("get the %s: %w", name, err)
		}
	}
	if current != nil && !metav1.IsControlledBy(current, l.group) {
		if owner := metav1.GetControllerOf(current); owner != nil && owner.Name == l.group.Name && owner.Kind == "TailscaleProxyGroup" {
			l.requeueAt(l.Now().Add(groupRequeueSoon)) // belongs to a former group with this name and is garbage-collected
		}
		l.conflicts = append(l.conflicts, name)
		return nil
	}
	if current != nil && current.GetDeletionTimestamp() != nil {
		l.requeueAt(l.Now().Add(groupRequeueSoon))
		return nil
	}
	_, err := applyIfChanged(ctx, l.direct, want, current)
	return wrapError(err, "apply the %s", name)
}

// applyIfChanged applies want if current differs from it. current is nil if the object does not exist.
// wrote reports whether it was applied. If want has a resourceVersion, only that version is
// changed.
func applyIfChanged(ctx context.Context, to client.Client, want, current client.Object) (wrote bool, err error) {
	desired, err := appliedForm(want)
	if err != nil {
		return false, err
	}
	if current != nil {
		is, err := runtime.DefaultUnstructuredConverter.ToUnstructured(current)
		if err != nil {
			return false, err
		}
		if containsObject(desired, is) {
			return false, nil
		}
	}
	u := &unstructured.Unstructured{Object: desired}
	if rv := want.GetResourceVersion(); rv != "" {
		u.SetResourceVersion(rv)
	}
	return true, to.Apply(
		ctx,
		client.ApplyConfigurationFromUnstructured(u),
		client.FieldOwner(v1alpha1.FieldManager),
		client.ForceOwnership,
	)
}

// currentSecret returns the Secret with this name that this reconcile has read, or nil.
func (l *groupReconciliation) currentSecret(want client.Object) client.Object {
	if _, ok := want.(*corev1.Secret); !ok {
		return nil
	}
	for _, list := range []map[int]*corev1.Secret{l.state, l.config} {
		for _, s := range list {
			if s.Name == want.GetName() {
				return s
			}
		}
	}
	return nil
}

// appliedForm returns the object to apply, with the hash of its contents and without fields that are
// empty but serialized.
func appliedForm(o client.Object) (map[string]any, error) {
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	delete(out, "status")
	for _, path := range [][]string{{"metadata", "creationTimestamp"}, {"metadata", "resourceVersion"}, {"spec", "template", "metadata", "creationTimestamp"}} {
		unstructured.RemoveNestedField(out, path...)
	}
	hashed := maps.Clone(out)
	delete(hashed, "data") // do not hash secrets; their data is compared directly
	delete(hashed, "apiVersion")
	text, err := json.Marshal(hashed)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	if err := unstructured.SetNestedField(out, hex.EncodeToString(sum[:8]), "metadata", "annotations", appliedHashAnnotation); err != nil {
		return nil, errors.Join(errors.New("annotations"), err)
	}
	return out, nil
}

// containsObject reports whether an object has all values in want.
func containsObject(want, is map[string]any) bool {
	want = runtime.DeepCopyJSON(want)
	for _, path := range [][]string{
		{"apiVersion"}, {"kind"}, // not set in objects read by type
		{"metadata", "ownerReferences"}, // more owners are allowed; the controller was checked before
	} {
		unstructured.RemoveNestedField(want, path...)
	}
	data, _ := want["data"].(map[string]any)
	stored, _ := is["data"].(map[string]any)
	return (data == nil || len(data) == len(stored)) && containsValues(want, is) // all data belongs to the operator
}

// containsValues reports whether is contains all values in want. Additional fields of other managers are
// ignored.
func containsValues(want, is any) bool {
	switch want := want.(type) {
	case map[string]any:
		is, _ := is.(map[string]any)
		for key := range want {
			if !containsValues(want[key], is[key]) {
				return false
			}
		}
		return true
	case []any:
		is, _ := is.([]any)
		return slices.EqualFunc(want, is, containsValues)
	}
	return reflect.DeepEqual(want, is)
}

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
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace,
			Name:      w.Name,
			Labels:    map[string]string{v1alpha1.ManagedLabel: "true", v1alpha1.TailnetLabel: w.Tailnet},
		},
		Spec: v1alpha1.TailscaleProxyGroupSpec{
			Type: w.Type, Replicas: new(w.Replicas), TailnetRef: &v1alpha1.TailnetReference{Name: w.Tailnet}, TailnetTarget: w.Target.DeepCopy(),
			Consumers: v1alpha1.NamespaceSelector{
				From: v1alpha1.NamespacesSelector,
				Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: w.Consumers}}},
			},
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

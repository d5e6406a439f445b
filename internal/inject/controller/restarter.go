package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/inject"
	"github.com/tailplane/tailplane/internal/kube"
)

// Restarter restarts workloads whose pods have an outdated adapter, if the workload requests it by annotation.
// It restarts one workload at a time, and each one only once for the same adapter. The progress is stored in
// the workload, so that another replica can continue.
type Restarter struct {
	Config    *rest.Config
	Namespace string // of the Lease
	Lease     string // elects the replica that restarts
	Identity  string // of this replica
	Options   inject.Options
	Interval  time.Duration // the interval between checks; each check restarts at most one workload
	Log       *slog.Logger
}

// workload is an object that creates pods from a template.
type workload struct {
	kind       string // plural, as in API paths: "deployments"
	meta       metav1.ObjectMeta
	selector   *metav1.LabelSelector
	template   corev1.PodTemplateSpec
	rollingOut bool // a rollout is in progress
	paused     bool // rollouts are paused
}

func (w workload) String() string { return w.kind + "/" + w.meta.Namespace + "/" + w.meta.Name }

// workloadKinds are the workloads that replace their pods when the template changes.
var workloadKinds = []string{"deployments", "statefulsets", "daemonsets"}

// Run restarts workloads until ctx ends, while this replica holds the Lease.
func (r *Restarter) Run(ctx context.Context) error {
	if r.Config == nil || r.Namespace == "" || r.Lease == "" || r.Identity == "" || r.Interval <= 0 || r.Log == nil {
		return errors.New("restarts: a required field is missing")
	}
	client, err := kubernetes.NewForConfig(kube.Unthrottled(r.Config))
	if err != nil {
		return err
	}
	return newElection(r.Config, r.Namespace, r.Lease, r.Identity, r.Log).RunTerms(ctx, func(ctx context.Context) {
		tick := time.NewTicker(r.Interval)
		defer tick.Stop()
		for {
			if _, err := r.restartOutdated(ctx, client); err != nil && ctx.Err() == nil {
				r.Log.Warn("workloads with an outdated adapter are not restarted", "err", err)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
}

// restartOutdated restarts the first workload that needs it and returns its name. It returns "" if there is none, or if
// a restart is still in progress.
func (r *Restarter) restartOutdated(ctx context.Context, client *kubernetes.Clientset) (string, error) {
	all, err := r.optedIn(ctx, client)
	if err != nil {
		return "", err
	}
	var next []workload
	hashes := map[string]string{}
	for _, w := range all {
		if w.paused {
			continue
		}
		hash, err := inject.Hash(w.template.Annotations, r.Options)
		if err != nil {
			continue // injection refuses its pods and reports the reason
		}
		done := w.template.Annotations[inject.RestartedFor]
		if done != "" && w.rollingOut {
			r.Log.Info("a workload is still restarting with the current adapter; other restarts wait", "workload", w.String())
			return "", nil
		}
		if done != hash {
			next, hashes[w.String()] = append(next, w), hash
		}
	}
	slices.SortFunc(next, func(a, b workload) int { return strings.Compare(a.String(), b.String()) })
	for _, w := range next {
		outdated, err := r.outdated(ctx, client, w)
		if err != nil {
			return "", err
		}
		if outdated == 0 || w.rollingOut { // another rollout is in progress
			continue
		}
		if err := restartWorkload(ctx, client, w, hashes[w.String()]); err != nil {
			if kube.IsStale(err) {
				continue
			}
			return "", fmt.Errorf("restart %s: %w", w, err)
		}
		r.Log.Info(
			"a workload is restarted with the current adapter, because its annotation requests it",
			"workload",
			w.String(),
			"pods",
			outdated,
		)
		return w.String(), nil
	}
	return "", nil
}

// optedIn returns the workloads with the annotation. Of all others it reads only the metadata.
func (r *Restarter) optedIn(ctx context.Context, client *kubernetes.Clientset) (all []workload, err error) {
	heads, err := metadata.NewForConfig(kube.Unthrottled(r.Config))
	if err != nil {
		return nil, err
	}
	for _, kind := range workloadKinds {
		for next := ""; ; {
			list, err := heads.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: kind}).
				List(ctx, metav1.ListOptions{Limit: pageSize, Continue: next})
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", kind, err)
			}
			for _, o := range list.Items {
				if o.Annotations[inject.AutoRestart] != "true" || o.DeletionTimestamp != nil {
					continue
				}
				w, err := getWorkload(ctx, client, kind, o.Namespace, o.Name)
				if kube.IsStale(err) {
					continue
				}
				if err != nil {
					return nil, fmt.Errorf("get %s %s/%s: %w", kind, o.Namespace, o.Name, err)
				}
				all = append(all, w)
			}
			if next = list.Continue; next == "" {
				break
			}
		}
	}
	return all, nil
}

func getWorkload(ctx context.Context, client *kubernetes.Clientset, kind, namespace, name string) (workload, error) {
	apps := client.AppsV1()
	switch kind {
	case "deployments":
		return asWorkload(ctx, apps.Deployments(namespace).Get, name, fromDeployment)
	case "statefulsets":
		return asWorkload(ctx, apps.StatefulSets(namespace).Get, name, fromStatefulSet)
	}
	return asWorkload(ctx, apps.DaemonSets(namespace).Get, name, fromDaemonSet)
}

func asWorkload[T any](
	ctx context.Context,
	get func(context.Context, string, metav1.GetOptions) (*T, error),
	name string,
	from func(*T) workload,
) (workload, error) {
	o, err := get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return workload{}, err
	}
	return from(o), nil
}

// The rollout status follows "kubectl rollout status".

func fromDeployment(o *appsv1.Deployment) workload {
	want, s := desiredReplicas(o.Spec.Replicas), o.Status
	return workload{"deployments", o.ObjectMeta, o.Spec.Selector, o.Spec.Template,
		s.ObservedGeneration < o.Generation || s.UpdatedReplicas < want || s.Replicas > s.UpdatedReplicas ||
			s.AvailableReplicas < s.UpdatedReplicas, o.Spec.Paused}
}

func fromStatefulSet(o *appsv1.StatefulSet) workload {
	want, s := desiredReplicas(o.Spec.Replicas), o.Status
	manual := o.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType
	return workload{"statefulsets", o.ObjectMeta, o.Spec.Selector, o.Spec.Template,
		s.ObservedGeneration < o.Generation || !manual && (s.UpdatedReplicas < want || s.ReadyReplicas < want), false}
}

func fromDaemonSet(o *appsv1.DaemonSet) workload {
	s := o.Status
	manual := o.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType
	return workload{"daemonsets", o.ObjectMeta, o.Spec.Selector, o.Spec.Template,
		s.ObservedGeneration < o.Generation ||
			!manual && (s.UpdatedNumberScheduled < s.DesiredNumberScheduled || s.NumberAvailable < s.DesiredNumberScheduled), false}
}

func desiredReplicas(replicas *int32) int32 {
	if replicas == nil {
		return 1
	}
	return *replicas
}

// outdated returns the number of pods of a workload with an outdated adapter.
func (r *Restarter) outdated(ctx context.Context, client *kubernetes.Clientset, w workload) (n int, err error) {
	selector, err := metav1.LabelSelectorAsSelector(w.selector)
	if err != nil {
		return 0, fmt.Errorf("the selector of %s: %w", w, err)
	}
	pods, err := client.CoreV1().Pods(w.meta.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return 0, fmt.Errorf("list the pods of %s: %w", w, err)
	}
	for _, p := range pods.Items {
		if _, current, ok := inject.Current(p.Annotations, r.Options); ok && !current && p.DeletionTimestamp == nil {
			n++
		}
	}
	return n, nil
}

// restartWorkload changes the template in the way of "kubectl rollout restart". It fails with a conflict if the
// workload has changed since it was read.
func restartWorkload(ctx context.Context, client *kubernetes.Clientset, w workload, hash string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": w.meta.ResourceVersion},
		"spec": map[string]any{
			"template": map[string]any{"metadata": map[string]any{"annotations": map[string]string{inject.RestartedFor: hash}}},
		},
	})
	if err != nil {
		return err
	}
	return client.AppsV1().RESTClient().Patch(types.MergePatchType).Namespace(w.meta.Namespace).Resource(w.kind).Name(w.meta.Name).
		VersionedParams(&metav1.PatchOptions{FieldManager: "tailplane-inject"}, metav1.ParameterCodec).Body(patch).Do(ctx).Error()
}

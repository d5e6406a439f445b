//go:build unix

package install

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// ADP-31: with monitoring on, a PodMonitor selects exactly the webhook's pods, at a port that they have.
func TestInjectIsMonitored(t *testing.T) {
	find := func(all []*unstructured.Unstructured, kind string) *unstructured.Unstructured {
		i := slices.IndexFunc(all, func(u *unstructured.Unstructured) bool {
			return u.GetKind() == kind && u.GetName() == "tailplane-inject"
		})
		if i < 0 {
			return nil
		}
		return all[i]
	}
	inject := profileValues(t, "inject")
	on := []string{"--set", "metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.interval=45s,metrics.serviceMonitor.labels.release=main"}
	if find(objects(t, render(t, inject)), "PodMonitor") != nil || find(objects(t, render(t, profileValues(t, "split"), on...)), "PodMonitor") != nil {
		t.Error("it exists without being requested, or without a webhook")
	}
	all := objects(t, render(t, inject, on...))
	monitor, webhook := find(all, "PodMonitor"), find(all, "Deployment")
	if monitor == nil || webhook == nil {
		t.Fatalf("PodMonitor %v, Deployment %v", monitor, webhook)
	}
	chosen, _, err := unstructured.NestedStringMap(monitor.Object, "spec", "selector", "matchLabels")
	switch {
	case err != nil:
		t.Errorf("it chooses: %v", err)
	case len(chosen) == 0:
		t.Errorf("it chooses: len(chosen) = %v", len(chosen))
	case monitor.GetLabels()["release"] != "main":
		t.Errorf(`it chooses: monitor.GetLabels()["release"] != "main"; chosen = %v, %v, %v`, chosen, monitor.GetLabels(), err)
	}
	for _, u := range all {
		var of map[string]string
		switch u.GetKind() {
		case "Deployment":
			of = as[appsv1.Deployment](t, u).Spec.Template.Labels
		case "StatefulSet":
			of = as[appsv1.StatefulSet](t, u).Spec.Template.Labels
		default:
			continue
		}
		if got := labels.SelectorFromSet(chosen).Matches(labels.Set(of)); got != (u == webhook) {
			t.Errorf("it collects from %s %s: %v", u.GetKind(), u.GetName(), got)
		}
	}
	endpoints, _, err := unstructured.NestedSlice(monitor.Object, "spec", "podMetricsEndpoints")
	if err != nil || len(endpoints) != 1 {
		t.Fatalf("%v %v", endpoints, err)
	}
	at := endpoints[0].(map[string]any)
	ports := as[appsv1.Deployment](t, webhook).Spec.Template.Spec.Containers[0].Ports
	switch {
	case at["path"] != "/metrics":
		t.Errorf(`it collects: at["path"] = %v, want %v`, at["path"], "/metrics")
	case at["interval"] != "45s":
		t.Errorf(`it collects: at["interval"] = %v, want %v`, at["interval"], "45s")
	case !slices.ContainsFunc(ports, func(p corev1.ContainerPort) bool { return p.Name == at["port"] && p.ContainerPort == 8080 }):
		t.Errorf(`it collects: slices.ContainsFunc(ports, func(p corev1.ContainerPort) bool { return p.Name == at["port"] && p.ContainerPort == 8080 }) is false; %v, ports = %v`,
			at, ports)
	}
}

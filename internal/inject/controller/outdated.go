package controller

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/inject"
	"github.com/tailplane/tailplane/internal/kube"
)

// OutdatedPod is a pod whose adapter differs from the one that injection would add now.
type OutdatedPod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Owner     string `json:"owner,omitempty"` // its controller, such as ReplicaSet/web-5d9c
	Version   string `json:"version"`         // of the program that injected it
}

// Outdated compares the pods of a cluster with the current injection.
type Outdated struct {
	Injected int           `json:"injected"` // pods with an adapter
	Pods     []OutdatedPod `json:"outdated"`
}

// pageSize limits the memory of one list response.
const pageSize = 500

// FindOutdated lists the metadata of all pods and finds the outdated ones. It does not read pod specs.
func FindOutdated(ctx context.Context, config *rest.Config, o inject.Options) (Outdated, error) {
	client, err := metadata.NewForConfig(kube.Unthrottled(config))
	if err != nil {
		return Outdated{}, err
	}
	d := Outdated{Pods: []OutdatedPod{}}
	for next := ""; ; {
		list, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).
			List(ctx, metav1.ListOptions{Limit: pageSize, Continue: next})
		if err != nil {
			return Outdated{}, fmt.Errorf("list pods: %w", err) // a partial result would look complete
		}
		for _, pod := range list.Items {
			version, current, ok := inject.Current(pod.Annotations, o)
			if !ok {
				continue
			}
			if d.Injected++; current {
				continue
			}
			out := OutdatedPod{Namespace: pod.Namespace, Name: pod.Name, Version: version}
			if c := metav1.GetControllerOf(&pod); c != nil {
				out.Owner = c.Kind + "/" + c.Name
			}
			d.Pods = append(d.Pods, out)
		}
		if next = list.Continue; next == "" {
			return d, nil
		}
	}
}

package injectkube

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

// Outdated is a pod whose adapter differs from the one that injection would add now.
type Outdated struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Owner     string `json:"owner,omitempty"` // its controller, such as ReplicaSet/web-5d9c
	Version   string `json:"version"`         // of the program that injected it
}

// Drift compares the pods of a cluster with the current injection.
type Drift struct {
	Injected int        `json:"injected"` // pods with an adapter
	Outdated []Outdated `json:"outdated"`
}

// page limits the memory of one list response.
const page = 500

// Compare lists the metadata of all pods and finds the outdated ones. It does not read pod specs.
func Compare(ctx context.Context, config *rest.Config, o inject.Options) (Drift, error) {
	client, err := metadata.NewForConfig(kube.Unthrottled(config))
	if err != nil {
		return Drift{}, err
	}
	d := Drift{Outdated: []Outdated{}}
	for next := ""; ; {
		list, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).List(ctx, metav1.ListOptions{Limit: page, Continue: next})
		if err != nil {
			return Drift{}, fmt.Errorf("list pods: %w", err) // a partial result would look complete
		}
		for _, pod := range list.Items {
			version, current, ok := inject.Current(pod.Annotations, o)
			if !ok {
				continue
			}
			if d.Injected++; current {
				continue
			}
			out := Outdated{Namespace: pod.Namespace, Name: pod.Name, Version: version}
			if c := metav1.GetControllerOf(&pod); c != nil {
				out.Owner = c.Kind + "/" + c.Name
			}
			d.Outdated = append(d.Outdated, out)
		}
		if next = list.Continue; next == "" {
			return d, nil
		}
	}
}

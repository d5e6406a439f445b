package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

const profileGroup = "multicluster.x-k8s.io"

// profileVersions are the versions that this package can write, the best one first.
var profileVersions = []string{"v1alpha2", "v1alpha1"}

// A servedKind describes how the API server serves ClusterProfile.
type servedKind struct {
	version string // empty: not served
	// access reports whether the status has accessProviders. Until early 2026 v1alpha1 did not, or had credentialProviders in one of two
	// shapes. The profiler does not write those.
	access bool
}

func (s servedKind) resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: profileGroup, Version: s.version, Resource: "clusterprofiles"}
}

// discoverKind determines how the API server serves ClusterProfile. Every account may read the published schema, and the API server validates and
// prunes by it.
func discoverKind(ctx context.Context, c rest.Interface) (servedKind, error) {
	for _, version := range profileVersions {
		text, err := c.Get().AbsPath("/openapi/v3/apis/"+profileGroup+"/"+version).SetHeader("Accept", "application/json").Do(ctx).Raw()
		if apierrors.IsNotFound(err) {
			continue
		} else if apierrors.IsForbidden(err) {
			return servedKind{}, fmt.Errorf("this account may not read the schema of %s under /openapi/v3; the ClusterRole system:discovery normally grants this right to all accounts", profileGroup)
		} else if err != nil {
			return servedKind{}, fmt.Errorf("schema of %s/%s: %w", profileGroup, version, err)
		}
		there, access, err := findInSchema(text, version)
		if err != nil {
			return servedKind{}, fmt.Errorf("schema of %s/%s: %w", profileGroup, version, err)
		}
		if there {
			return servedKind{version, access}, nil
		}
	}
	return servedKind{}, nil
}

// A schemaNode is the part of a schema of /openapi/v3 that findInSchema reads.
type schemaNode struct {
	Kinds      []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
	Properties map[string]*schemaNode    `json:"properties"`
	Items      *schemaNode               `json:"items"`
}

// property returns the schema of a property, or nil if n does not have it.
func (n *schemaNode) property(name string) *schemaNode {
	if n == nil {
		return nil
	}
	return n.Properties[name]
}

// findInSchema reports whether a document of /openapi/v3 has the kind, and whether the kind has the access providers field in the form that we
// write.
func findInSchema(text []byte, version string) (there, access bool, err error) {
	var document struct {
		Components struct {
			Schemas map[string]*schemaNode `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return false, false, err
	}
	want := schema.GroupVersionKind{Group: profileGroup, Version: version, Kind: "ClusterProfile"}
	for _, s := range document.Components.Schemas {
		if !slices.Contains(s.Kinds, want) {
			continue
		}
		providers := s.property("status").property("accessProviders")
		if providers == nil {
			return true, false, nil
		}
		cluster := providers.Items.property("cluster")
		return true, cluster.property("server") != nil && cluster.property("certificate-authority-data") != nil, nil
	}
	return false, false, nil
}

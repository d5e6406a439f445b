//go:build unix

package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// fieldOwner is the field manager of all objects that this package applies.
const fieldOwner = "kubetest"

// servedLimit bounds the wait until new kinds are served. The server needs about two seconds after their creation.
const servedLimit = startLimit

// kindLimit bounds the wait for a kind that is missing in API discovery.
const kindLimit = 5 * time.Second

// ApplyFiles applies all files that match the [filepath.Glob] pattern in one call of Apply. It returns an error if no
// file matches.
func (c *Cluster) ApplyFiles(ctx context.Context, pattern string) error {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("%s: no files", pattern)
	}
	var documents [][]byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		documents = append(documents, b)
	}
	return c.Apply(ctx, documents...)
}

// Apply creates or updates every object of the documents by server-side apply as the admin. A document is YAML or
// JSON and can contain many objects and Lists. Apply handles all CustomResourceDefinitions first and waits until the
// server serves them. Namespaces follow, and then the other objects in the given order. The error names the object.
func (c *Cluster) Apply(ctx context.Context, documents ...[]byte) error {
	objects, err := decode(documents)
	if err != nil {
		return err
	}
	isCRD := func(u *unstructured.Unstructured) bool {
		return u.GroupVersionKind().GroupKind().String() == "CustomResourceDefinition.apiextensions.k8s.io"
	}
	rank := func(u *unstructured.Unstructured) int {
		switch {
		case isCRD(u):
			return 0
		case u.GroupVersionKind().GroupKind().String() == "Namespace":
			return 1
		}
		return 2
	}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })

	ctx, cancel := context.WithTimeoutCause(ctx, servedLimit, fmt.Errorf("not within %v", servedLimit))
	defer cancel()
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.client.Discovery()))
	first := slices.IndexFunc(objects, func(u *unstructured.Unstructured) bool { return !isCRD(u) })
	if first < 0 {
		first = len(objects)
	}
	for _, o := range objects[:first] {
		if err := c.apply(ctx, mapper, o); err != nil {
			return err
		}
	}
	for _, o := range objects[:first] {
		if err := c.waitServed(ctx, o.GetName()); err != nil {
			return err
		}
	}
	mapper.Reset()
	for _, o := range objects[first:] {
		if err := c.apply(ctx, mapper, o); err != nil {
			return err
		}
	}
	return nil
}

// apply applies one object. API discovery may not contain a new kind yet, so apply retries an unknown kind for a few
// seconds.
func (c *Cluster) apply(ctx context.Context, mapper meta.ResettableRESTMapper, u *unstructured.Unstructured) error {
	what := fmt.Sprintf("apply %s %s", u.GetKind(), strings.TrimPrefix(u.GetNamespace()+"/"+u.GetName(), "/"))
	gvk := u.GroupVersionKind()
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	for end := time.Now().Add(kindLimit); meta.IsNoMatchError(err) && time.Now().Before(end) && pause(ctx); {
		mapper.Reset()
		mapping, err = mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	var resource dynamic.ResourceInterface = c.dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		// Without a namespace, the server would return an unhelpful 404.
		if u.GetNamespace() == "" {
			return fmt.Errorf("%s: a namespace is required", what)
		}
		resource = c.dynamic.Resource(mapping.Resource).Namespace(u.GetNamespace())
	}
	if _, err := resource.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: fieldOwner, Force: true}); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// waitServed waits until a definition is established and each of its served versions responds. The condition is not
// enough, because the aggregation layer of the server learns of a new group a little later.
func (c *Cluster) waitServed(ctx context.Context, name string) error {
	definitions := c.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	var crd *unstructured.Unstructured
	for {
		var err error
		if crd, err = definitions.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("CustomResourceDefinition %s: %w", name, err)
		}
		if status, _ := condition(crd, "Established"); status == "True" {
			break
		}
		if status, message := condition(crd, "NamesAccepted"); status == "False" {
			return fmt.Errorf("CustomResourceDefinition %s: %s", name, message)
		}
		if !pause(ctx) {
			return fmt.Errorf("CustomResourceDefinition %s: established: %w", name, context.Cause(ctx))
		}
	}
	httpClient, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return err
	}
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		version, _ := v.(map[string]any)
		if served, _ := version["served"].(bool); !served {
			continue
		}
		url := fmt.Sprintf("%s/apis/%s/%v/%s?limit=1", c.Server, group, version["name"], plural)
		for {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			r, err := httpClient.Do(req)
			if err != nil {
				return fmt.Errorf("CustomResourceDefinition %s: %w", name, err)
			}
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				break
			}
			if !pause(ctx) {
				return fmt.Errorf("CustomResourceDefinition %s: %v not served (%s): %w", name, version["name"], r.Status, context.Cause(ctx))
			}
		}
	}
	return nil
}

// condition returns status and message of an object's condition, or empty strings if the condition does not exist.
func condition(u *unstructured.Unstructured, kind string) (status, message string) {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, x := range conditions {
		if c, ok := x.(map[string]any); ok && c["type"] == kind {
			status, _ = c["status"].(string)
			message, _ = c["message"].(string)
		}
	}
	return status, message
}

// pause waits a moment and reports whether there is time for another attempt.
func pause(ctx context.Context) bool {
	return retry.Sleep(ctx, 20*time.Millisecond) == nil
}

// decode returns the objects of all documents. It returns an error if a document is not an object.
func decode(documents [][]byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for i, document := range documents {
		d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(document), 4096)
		for {
			u := new(unstructured.Unstructured)
			err := d.Decode(&u.Object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("document %d: %w", i, err)
			}
			if len(u.Object) == 0 {
				continue // only comments between two separators
			}
			if u.GetKind() == "" || u.GetAPIVersion() == "" {
				return nil, fmt.Errorf("document %d: an object without apiVersion or kind", i)
			}
			if !u.IsList() {
				objects = append(objects, u)
				continue
			}
			err = u.EachListItem(func(o runtime.Object) error {
				item, ok := o.(*unstructured.Unstructured)
				if !ok {
					return fmt.Errorf("a %T in a list", o)
				}
				objects = append(objects, item)
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("document %d: %w", i, err)
			}
		}
	}
	return objects, nil
}

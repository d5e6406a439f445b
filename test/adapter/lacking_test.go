package adapter

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// boats is a CRD that only these tests use.
const boats = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"boats.lacking.example"},"spec":{
	"group":"lacking.example","scope":"Namespaced","names":{"kind":"Boat","plural":"boats","singular":"boat","listKind":"BoatList"},
	"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`

// ADP-15, ADP-18: when a member of a spread lacks a kind, the adapter reports it when it loads the configuration. A
// list of that kind gets 503: after a 404, clients would delete the objects of the other members from their caches. A
// kind that no member has gets 404.
func TestSeveral_Lacking(t *testing.T) {
	three := three(t)
	s := three.beside(t, severalConfig+`
- name: boats
  match: {apiGroups: [lacking.example], resources: [boats, ships], namespaces: [shop]}
  target: {spread: {members: [east, west], strategy: hash, onUnavailable: {read: skip}}}
`)
	found := func(cluster string) {
		t.Helper()
		rest := three.admin[cluster].RESTClient()
		const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
		t.Cleanup(func() {
			if err := rest.Delete().AbsPath(crds, "boats.lacking.example").Do(context.Background()).Error(); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
			eventually(t, cluster+" has no boats any more", func() bool {
				return apierrors.IsNotFound(rest.Get().AbsPath("/apis/lacking.example/v1/namespaces/shop/boats").Do(context.Background()).Error())
			})
		})
		if err := rest.Post().AbsPath(crds).Body([]byte(boats)).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
		eventually(t, cluster+" has boats", func() bool {
			return rest.Get().AbsPath("/apis/lacking.example/v1/namespaces/shop/boats").Do(t.Context()).Error() == nil
		})
	}
	app := s.client(t).RESTClient()
	list := func(resource string, watch bool) error {
		r := app.Get().AbsPath("/apis/lacking.example/v1/namespaces/shop/" + resource).MaxRetries(0)
		if watch {
			r = r.Param("watch", "true").Param("timeoutSeconds", "1")
		}
		return r.Do(t.Context()).Error()
	}
	said := func(text string) {
		t.Helper()
		eventually(t, fmt.Sprintf("the adapter says %q", text), func() bool { return strings.Contains(s.adapter.Output(), text) })
	}
	for _, cluster := range []string{"east", "west"} {
		said("cluster " + cluster + " has no boats.lacking.example, which rule boats spreads")
	}
	if err := list("boats", false); !apierrors.IsNotFound(err) {
		t.Errorf("no cluster has boats: %v", err)
	}

	found("east")
	for _, watch := range []bool{false, true} {
		eventually(t, fmt.Sprintf("with watch=%v, the answer reports that west has no boats", watch), func() bool {
			err := list("boats", watch) // discovery may report it a moment after the first list
			status, ok := err.(apierrors.APIStatus)
			return ok && status.Status().Code == http.StatusServiceUnavailable && strings.Contains(err.Error(), "cluster west has no lacking.example/v1 boats")
		})
	}
	if err := list("ships", false); !apierrors.IsNotFound(err) {
		t.Errorf("no cluster has ships: %v", err)
	}
	if err := s.adapter.Configure(s.options.Config + "# loaded once more\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "/readyz lists the clusters without boats", func() bool {
		says := s.adminPort(t, "/readyz?verbose")
		return strings.Contains(says, "cluster west has no boats") && !strings.Contains(says, "cluster east has no boats")
	})

	found("west")
	eventually(t, "boats are listed when both have them", func() bool { return list("boats", false) == nil })
}

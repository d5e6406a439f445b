package multicluster

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/multicluster/config"
)

const checkedConfig = `apiVersion: mca.tailplane.dev/v1alpha1
kind: Config
epoch: 7
home: here
clusters:
- {name: here, slot: 0, inCluster: true}
- {name: east, slot: 1, allowLoopback: true, credentials: {secret: east}}
- {name: west, slot: 2, allowLoopback: true, credentials: {secret: west}}
- {name: north, slot: 3, credentials: {secret: north}}
rules:
- name: batch
  match: {apiGroups: [batch, apps], resources: [jobs, deployments, boats]}
  target: {spread: {members: [east, west]}}
- {name: cars, match: {apiGroups: [example.com], resources: [cars], namespaces: [a]}, target: {cluster: east}}
- {name: all, match: {namespaces: [b]}, target: {cluster: north}}
`

// TestCheckClusters checks that missing resources of a cluster are reported before an adapter serves it.
func TestCheckClusters(t *testing.T) {
	p := newConfigEnv(t)
	documents := map[string]string{
		"/readyz":  "ok",
		"/version": `{"gitVersion":"v1.37.0"}`,
		"/api":     `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[]}`,
		"/apis": `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{"name":"batch"},"versions":[{"version":"v1","resources":[
			{"resource":"jobs","responseKind":{"kind":"Job"},"scope":"Namespaced"}]}]},{"metadata":{"name":"apps"},"versions":[{"version":"v1","resources":[{"resource":"deployments","responseKind":{"kind":"Deployment"},"scope":"Namespaced"}]}]}]}`,
	}
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer east-token-CANARY" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		io.WriteString(w, documents[r.URL.Path])
	}))
	defer srv.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	for _, name := range []string{"east", "west"} {
		p.write("credentials/"+name+"/server", srv.URL)
		p.write("credentials/"+name+"/ca.crt", ca)
		p.write("credentials/"+name+"/token", name+"-token-CANARY")
	}
	conf, _, err := config.Parse([]byte(checkedConfig))
	if err != nil {
		t.Fatal(err)
	}
	p.loader.Home.Servers = nil // as outside a pod
	all := p.loader.CheckClusters(t.Context(), conf)
	switch {
	case len(all) != 3:
		t.Fatalf("asked: len(all) = %v, want 3", len(all))
	case all[0].Cluster != "east":
		t.Fatalf("asked: all[0].Cluster = %q, want %q", all[0].Cluster, "east")
	case all[1].Cluster != "west":
		t.Fatalf("asked: all[1].Cluster = %q, want %q", all[1].Cluster, "west")
	case all[2].Cluster != "north":
		t.Fatalf("asked: all[2].Cluster = %q, want %q", all[2].Cluster, "north")
	}
	switch e := all[0]; {
	case e.Error != "":
		t.Errorf("e.Error = %q, want none", e.Error)
	case e.Version != "v1.37.0":
		t.Errorf("e.Version = %q, want %q", e.Version, "v1.37.0")
	case strings.Join(e.Missing, " ") != "boats.batch cars.example.com":
		t.Errorf(`strings.Join(e.Missing, " ") = %q, want %q`, strings.Join(e.Missing, " "), "boats.batch cars.example.com")
	}
	if w := all[1]; !strings.Contains(w.Error, "cluster west rejected its credential") {
		t.Errorf("%+v", w)
	}
	if n := all[2]; !strings.Contains(n.Error, "no such file") {
		t.Errorf("%+v", n)
	}
	for _, tt := range []struct{ path, text, want string }{
		{"/version", "hello", "it is not an API server"},
		{"/apis", "{", "discovery"},
	} {
		was := documents[tt.path]
		documents[tt.path] = tt.text
		if e := p.loader.CheckClusters(t.Context(), conf)[0]; !strings.Contains(e.Error, tt.want) {
			t.Errorf("%s says %q: %+v", tt.path, tt.text, e)
		}
		documents[tt.path] = was
	}
	if len(p.loader.CheckClusters(t.Context(), config.Default())) != 0 {
		t.Error("outside of a pod, the pod's own cluster received a request")
	}
}

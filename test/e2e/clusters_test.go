package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// partedPolicy returns a policy with servers on two sides. One grant decides whether gossip may pass between the
// sides.
func partedPolicy(joined bool) string {
	between := ""
	if joined {
		between = `{"src": ["tag:left"], "dst": ["tag:right"], "ip": ["tcp:7946"]}, {"src": ["tag:right"], "dst": ["tag:left"], "ip": ["tcp:7946"]},`
	}
	return `{
  "groups": {"group:platform": ["alice@example.com"]},
  "tagOwners": {"tag:tailplane": ["autogroup:admin"], "tag:left": ["autogroup:admin"], "tag:right": ["autogroup:admin"]},
  "grants": [
    {"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"]},
    {"src": ["tag:left"], "dst": ["tag:left"], "ip": ["tcp:7946"]},
    {"src": ["tag:right"], "dst": ["tag:right"], "ip": ["tcp:7946"]},` + between + `
    {"src": ["group:platform"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "8h"}]}},
  ],
}`
}

// A clusterEnv is one of many access servers. It has a process, a tailnet node and a side of the tailnet, and in the API
// server two namespaces and a ServiceAccount. Its cluster is separate in name only: see TestManyServers.
type clusterEnv struct {
	env        *testenv.Env
	name, side string
	labels     string // as in a settings file
	kubeconfig string
	settings   string // without the labels
	process    *testenv.Process
}

// prepare applies a stand's part of the manifests to the API server, in the stand's own namespaces.
func (s *clusterEnv) prepare(ctx context.Context, manifests [][]byte) error {
	own := strings.NewReplacer(testenv.SystemNamespace, testenv.SystemNamespace+"-"+s.name, testenv.SigninNamespace, testenv.SigninNamespace+"-"+s.name)
	var docs [][]byte
	for _, m := range manifests {
		for doc := range bytes.SplitSeq(m, []byte("\n---\n")) {
			// Cluster-wide objects already exist.
			if !slices.ContainsFunc([]string{"CustomResourceDefinition", "ClusterRole", "ValidatingAdmissionPolicy"},
				func(kind string) bool { return bytes.Contains(append([]byte("\n"), doc...), []byte("\nkind: "+kind)) }) {
				docs = append(docs, []byte(own.Replace(string(doc))))
			}
		}
	}
	if err := s.env.Cluster.Apply(ctx, docs...); err != nil {
		return err
	}
	dir := filepath.Join(s.env.Dir, s.name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	authKey := filepath.Join(dir, "authkey")
	key := s.env.Net.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane", "tag:" + s.side}})
	if err := os.WriteFile(authKey, []byte(key+"\n"), 0o600); err != nil {
		return err
	}
	text, err := s.env.Settings("access") // must not happen later, because it writes a file that all stands read
	if err != nil {
		return err
	}
	s.settings = strings.NewReplacer(
		"name: east", "name: "+s.name+"\n  id: "+s.name,
		"hostname: tka", "hostname: tka-"+s.name,
		"roles: ", "namespace: "+testenv.SigninNamespace+"-"+s.name+"\n  systemNamespace: "+testenv.SystemNamespace+"-"+s.name+"\n  roles: ",
		s.env.AuthKeyFile(), authKey, filepath.Join(s.env.Dir, "access"), dir).Replace(string(text))
	s.kubeconfig, err = s.env.Cluster.ServiceAccountKubeconfig(ctx, testenv.SystemNamespace+"-"+s.name, "tailplane-access", dir)
	return err
}

// serve starts the process and returns when it serves.
func (s *clusterEnv) serve(ctx context.Context) error {
	const said = `"access is serving"`
	before := 0
	if s.process != nil {
		before = strings.Count(s.process.Output(), said)
	}
	var err error
	if s.process, err = s.env.Try(s.name, "access", nil, strings.Replace(s.settings, "labels: {env: demo}", "labels: "+s.labels, 1), "--kubeconfig", s.kubeconfig); err != nil {
		return err
	}
	for strings.Count(s.process.Output(), said) == before { // the log continues over restarts
		select {
		case <-s.process.Done():
			return fmt.Errorf("%s ended: %s", s.name, s.process.Output())
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w: %s", s.name, ctx.Err(), s.process.Output())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func (s *clusterEnv) url() string { return "https://tka-" + s.name + "." + s.env.Net.Suffix() }

// lists returns all clusters that s lists, by name.
func (s *clusterEnv) lists(ctx context.Context, p *testenv.Person) (map[string]gossip.Cluster, error) {
	a, err := tryAsk(ctx, p, "GET", s.url()+"/api/v1alpha1/memberlist?state=all", "")
	if err != nil {
		return nil, err
	}
	var list []gossip.Cluster
	if err := json.Unmarshal(a.body, &list); a.status != 200 || err != nil {
		return nil, fmt.Errorf("%s answers %d %s (%w)", s.name, a.status, a.body, err)
	}
	byName := map[string]gossip.Cluster{}
	for _, c := range list {
		byName[c.Name] = c
	}
	return byName, nil
}

// stands starts n access servers on one tailnet at about the same time. The last three are on the right side, or the
// last half if n is small.
func stands(t *testing.T, n int) []*clusterEnv {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "many")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r, err := testenv.Start(ctx, dir, testenv.Options{Policy: partedPolicy(true), Settings: map[string]string{"api.limits": testenv.NoLimits}, NoAccess: true, NoOperator: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	manifests, err := testenv.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	all := make([]*clusterEnv, n)
	for i := range all {
		all[i] = &clusterEnv{env: r, name: fmt.Sprintf("c%02d", i), side: "left", labels: "{env: demo}"}
		if i >= n-min(3, n/2) {
			all[i].side = "right"
		}
		if err := all[i].prepare(ctx, manifests); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		var wg sync.WaitGroup
		for _, s := range all {
			if s.process != nil {
				wg.Go(func() {
					if err := s.process.Stop(30 * time.Second); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
	})
	if err := together(all, func(s *clusterEnv) error { return s.serve(ctx) }); err != nil {
		t.Fatal(err)
	}
	return all
}

// together calls do for all stands at once.
func together(all []*clusterEnv, do func(*clusterEnv) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() { errs[i] = do(s) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

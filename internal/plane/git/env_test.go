//go:build unix

package git_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/fleet/gitops/tfvars"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/git"
	"github.com/tailplane/tailplane/internal/plane/kube"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/forgetest"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

const (
	file = "fleet/fleet.yaml"
	text = `# Runners of our organisations.
apiVersion: tailplane.dev/v1alpha1
kind: RunnerPool
metadata:
  name: gh-nix
spec:
  forge: github   # ours
  runsOn: [self-hosted, nix]
  scaling:
    min: 0
    max: 5    # what the nodes carry
    budget: 20
---
apiVersion: tailplane.dev/v1alpha1
kind: RunnerEnrollment
metadata: {name: acme}
spec:
  forge: github
  configURL: https://github.com/acme
  isolation: None
  credentials: {secretName: acme-app}
  pools: [{name: gh-nix, type: Shared}]
  owners:
  - amy@acme.dev # since 2024
  - ann@acme.dev
`
)

// format is one way to store the same objects, with the text that tests expect.
type format struct {
	name, file, text string
	layout           plane.RepositoryLayout
	raised           [2]string // lines removed and added for another max
	kept             string    // the comment in them
	node             [2]string // isolation, before and after
}

var manifests = format{name: "yaml", file: file, text: text, layout: gitops.Manifests{Pattern: file},
	raised: [2]string{"-    max: 5    # what the nodes carry", "+    max: 8 # what the nodes carry"}, kept: "max: 8 # what the nodes carry", node: [2]string{"isolation: None", "isolation: Node"}}

// formats returns all formats.
func formats() []format {
	const file = "tofu/stacks/arc-runners/terraform.tfvars"
	book, err := tfvars.NewStacks(tfvars.Stack{Path: file, Keys: map[string]map[string]string{
		"RunnerPool": {"forge": "sets.{name}.forge", "runsOn": "sets.{name}.runs_on", "scaling.min": "{name_}_min", "scaling.max": "{name_}_max", "scaling.budget": "{name_}_budget"},
		"RunnerEnrollment": {"forge": "orgs.{name}.forge", "configURL": "orgs.{name}.config_url", "isolation": "orgs.{name}.isolation", "credentials.secretName": "orgs.{name}.secret",
			"pools": "orgs.{name}.pools", "owners": "orgs.{name}.owners", "quota.cpu": "orgs.{name}.cpu", "quota.pods": "orgs.{name}.pods"}}})
	if err != nil {
		panic(err)
	}
	return []format{manifests, {name: "tfvars", file: file, layout: book, text: `# Runners of our organisations.
arc_version = "0.14.2" # of the whole stack

gh_nix_min    = 0
gh_nix_max    = 5 # what the nodes carry
gh_nix_budget = 20

sets = {
  gh-nix = { forge = "github", runs_on = ["self-hosted", "nix"] }
}

orgs = {
  acme = {
    forge      = "github" # ours
    config_url = "https://github.com/acme"
    isolation  = "None"
    secret     = "acme-app"
    pools      = [{ name = "gh-nix", type = "Shared" }]
    owners = [
      "amy@acme.dev", # since 2024
      "ann@acme.dev",
    ]
  }
}
`, raised: [2]string{"-gh_nix_max    = 5 # what the nodes carry", "+gh_nix_max    = 8 # what the nodes carry"}, kept: "gh_nix_max    = 8 # what the nodes carry", node: [2]string{`isolation  = "None"`, `isolation  = "Node"`}}}
}

var installed = sync.OnceValues(func() (*kubetest.Cluster, error) {
	c, err := kubetest.Run(context.Background(), kubetest.Options{Name: "shared"})
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob("../../../deploy/crds/tailplane.dev_runner*.yaml")
	if err != nil || len(files) != 4 {
		return nil, errors.Join(err, fmt.Errorf("definitions: %v", files))
	}
	var docs [][]byte
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		docs = append(docs, b)
	}
	return c, c.Apply(context.Background(), docs...)
})

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	os.Exit(m.Run()) // the shared cluster ends with it
}

// env is the plane's service for changes, behind a real server, with a real API server and a forge.
type env struct {
	*testing.T
	format
	changes *plane.ChangeService
	enroll  *plane.EnrollmentService
	watch   *plane.ChangePoller
	admin   client.Client
	api     http.Handler
	ns      string

	github     *forgetest.GitHubFake
	repository int64
	gitlab     *forgetest.GitLabFake

	mu      sync.Mutex
	now     time.Time
	caller  access.Login
	as      *access.Caller // instead of caller
	refused error          // of the identification
	pat     bool           // has a role
	entries []audit.Entry
	said    strings.Builder // every response
	secrets []string        // of the plane, at the forge
}

func (f *env) policy() access.PlanePolicy {
	p := access.PlanePolicy{Capability: "tailplane.dev/cap/plane", EmailDomains: []string{"acme.dev", "globex.dev", "initech.dev"},
		Orgs:     []access.Org{{Name: "acme", Owners: []string{"amy@acme.dev", "ann@acme.dev"}, Members: []string{"mel@acme.dev"}}, {Name: "globex", Owners: []string{"gus@globex.dev"}}, {Name: "initech", Owners: []string{"ivy@initech.dev"}}},
		Settings: []access.Holder{{Login: "olga@platform.dev", Role: access.PlaneRole{Name: access.Operator, Orgs: []string{"*"}}}}}
	if f.pat {
		p.Settings = append(p.Settings, access.Holder{Login: "ivy@initech.dev", Role: access.PlaneRole{Name: access.OrgAdmin, Orgs: []string{"globex"}}},
			access.Holder{Login: "pat@platform.dev", Role: access.PlaneRole{Name: access.PlatformAdmin, Orgs: []string{"*"}}})
	}
	return p
}

func newEnv(t *testing.T, at string) *env { return newEnvOf(t, at, manifests) }

func newEnvOf(t *testing.T, at string, x format) *env {
	t.Helper()
	t.Parallel()
	kubetest.SkipIfShort(t)
	c, err := installed()
	if err != nil {
		t.Fatal(err)
	}
	f := &env{T: t, format: x, ns: c.Namespace(t), now: time.Now(), pat: true}
	f.admin, err = client.New(c.AdminConfig(), client.Options{})
	f.must(err)
	conf := git.Config{Forge: at, Branch: "main"}
	switch at {
	case "github":
		g := forgetest.NewGitHub(t)
		g.AddAccount("platform", "")
		app, key := g.AddApp(t)
		g.Install(app, "platform", map[string]string{"contents": "write", "pull_requests": "write", "metadata": "read", "checks": "read", "statuses": "read"})
		f.github, f.repository = g, g.AddRepository("platform/fleet", false)
		g.Push(f.repository, "main", forgetest.GitHubCommit{Message: "begin"}, map[string]*string{x.file: new(x.text)})
		conf.URL, conf.Credential = g.URL, map[string][]byte{"github_app_id": []byte(strconv.FormatInt(app, 10)), "github_app_private_key": key}
		f.secrets = strings.Split(strings.TrimSpace(string(key)), "\n")[1:3]
	case "gitlab":
		g := forgetest.NewGitLab(t)
		g.AddProject("platform/fleet", map[string]string{x.file: x.text})
		f.gitlab = g
		f.secrets = []string{g.AddToken(forgetest.GitLabToken{User: "tailplane-bot", Level: 40, Scopes: []string{"api"}})}
		conf.URL, conf.Credential = g.URL, map[string][]byte{"access_token": []byte(f.secrets[0])}
	}
	conf.Repository, conf.Logins = "platform/fleet", map[string][]string{"pat@platform.dev": {"Pat-Hub"}}
	repo, err := git.Open(conf)
	f.must(err)
	now := func() time.Time { f.mu.Lock(); defer f.mu.Unlock(); return f.now }
	api, err := kube.Connect(c.AdminConfig(), now)
	f.must(err)
	stored := api.Changes(f.ns)
	store := plane.NewStore(now)
	watching := &kube.Watcher{DriftIgnores: api.DriftIgnores(f.ns, store), Config: c.AdminConfig(), Store: store, SigninNamespace: f.ns, SystemNamespace: f.ns, FleetNamespace: f.ns, Changes: true, Log: slog.New(slog.DiscardHandler), Now: now}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	wg.Go(func() { _ = watching.Run(ctx) })
	f.changes = &plane.ChangeService{Plane: &plane.Service{Store: store, Now: now}, Repository: repo, Store: stored, Layout: x.layout, DryRun: stored.DryRun, Link: func(id string) string { return "https://dashboard/changes/" + id },
		StillAllowed: func(_ context.Context, a gitops.Approval, org string, v access.Verb) bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			p, err := access.DecidePlane(access.Caller{Login: access.Login(a.By), Via: access.ViaTailnet, Device: access.Device{ID: a.Node}}, v, f.policy(), f.now)
			if err == nil {
				_, err = p.In(org)
			}
			return err == nil
		}}
	f.watch = &plane.ChangePoller{Changes: f.changes, Live: stored.GetSpec, Interval: 100 * time.Millisecond, Log: slog.New(slog.DiscardHandler)}
	d := httpapi.Server{Names: func() []string { return []string{"dashboard"} },
		Identify: func(*http.Request) (access.Caller, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.as != nil {
				return *f.as, f.refused
			}
			return access.Caller{Login: f.caller, Via: access.ViaTailnet, Tailnet: "example.com", Device: access.Device{ID: "n1", Name: "laptop"}}, nil
		},
		Decide: func(c access.Caller, v access.Verb, at time.Time) (access.Permit, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return access.DecidePlane(c, v, f.policy(), at)
		},
		Record: func(e audit.Entry) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.entries = append(f.entries, e)
			return nil
		},
		Encoder: plane.EnvelopeForm(), Log: slog.New(slog.DiscardHandler), Now: now}
	f.enroll = &plane.EnrollmentService{Plane: f.changes.Plane, Changes: f.changes}
	f.api = d.Handler(slices.Concat(f.changes.Routes(), f.enroll.Routes())...)
	return f
}

func (f *env) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// do sends a request as a person and decodes the data of the response into out.
func (f *env) do(who, method, path string, body, out any) problem.Code {
	f.Helper()
	f.mu.Lock()
	f.caller = access.Login(who)
	f.mu.Unlock()
	var b bytes.Buffer
	if body != nil {
		f.must(json.NewEncoder(&b).Encode(body))
	}
	r := httptest.NewRequestWithContext(f.Context(), method, plane.Base+path, &b)
	r.Host = "dashboard"
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	w := httptest.NewRecorder()
	f.api.ServeHTTP(w, r)
	f.said.Write(w.Body.Bytes())
	var e struct {
		Data  json.RawMessage
		Error *problem.Error
	}
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil {
		f.Fatalf("%s %s: %d %s: %v", method, path, w.Code, w.Body, err)
	}
	if e.Error != nil {
		f.Logf("%s: %s %s: %s %s", who, method, path, e.Error.Code, e.Error.Message)
		return e.Error.Code
	}
	if out != nil {
		f.must(json.Unmarshal(e.Data, out))
	}
	return ""
}

func editBody(kind, name, patch string) map[string]any {
	return map[string]any{"kind": kind, "name": name, "patch": json.RawMessage(patch), "reason": "the queue is long"}
}

// onMain returns the file on the applied branch.
func (f *env) onMain() string {
	if f.github != nil {
		return f.github.Commit(f.repository, "main").Files[f.file]
	}
	s, _ := f.gitlab.File("platform/fleet", "main", f.file)
	return s
}

// push adds a person's commit to a branch, as at the forge.
func (f *env) push(branch, login, content string) { f.commit(branch, login, f.file, content) }

// pushTo is [env.push] for another file.
func (f *env) pushTo(branch, file, content string) {
	f.commit(branch, "mallory@acme.dev", file, content)
}

func (f *env) commit(branch, login, file, content string) {
	if f.github != nil {
		f.github.Push(f.repository, branch, forgetest.GitHubCommit{Message: "mine", AuthorName: login, AuthorEmail: login, AuthorLogin: login}, map[string]*string{file: &content})
		return
	}
	f.gitlab.Push("platform/fleet", branch, login, "mine", map[string]*string{file: &content})
}

// apply applies the repository, as the deployment tool does.
func (f *env) apply(kind, name string) {
	f.Helper()
	spec, found, err := f.layout.Spec([]byte(f.onMain()), gitops.Ref{Kind: kind, Name: name})
	if err != nil || !found {
		f.Fatal(found, err)
	}
	b, err := json.Marshal(map[string]any{"apiVersion": "tailplane.dev/v1alpha1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec})
	f.must(err)
	o := new(unstructured.Unstructured)
	f.must(json.Unmarshal(b, o))
	f.must(f.admin.Patch(f.Context(), o, client.RawPatch("application/apply-patch+yaml", b), client.FieldOwner("argo"), client.ForceOwnership))
}

// state waits until a change is in one of the states.
func (f *env) state(id string, want ...string) plane.Change {
	f.Helper()
	var c plane.Change
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if f.do("pat@platform.dev", "GET", "/changes/"+id, nil, &c) == "" && slices.Contains(want, c.State) {
			return c
		}
	}
	f.Fatalf("the change is %s, want one of %s", c.State, want)
	return c
}

// everywhere runs a test at both forges and in each format.
func everywhere(t *testing.T, do func(*testing.T, *env)) {
	for _, at := range []string{"github", "gitlab"} {
		for _, x := range formats() {
			t.Run(at+"/"+x.name, func(t *testing.T) { do(t, newEnvOf(t, at, x)) })
		}
	}
}

//go:build unix

package dashboard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/git"
	"github.com/tailplane/tailplane/internal/plane/kube"
	"github.com/tailplane/tailplane/testkit/forgetest"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// A configuration is the fleet's configuration in a repository at a forge. It uses the real forge client, and dry
// runs and changes on a real API server.
type configuration struct {
	desk    *plane.ChangeService
	github  *forgetest.GitHubFake
	id      int64 // id of the repository
	admin   client.Client
	cluster *kubetest.Cluster
}

const (
	poolFile = `# What the nodes carry; ask the platform team before you raise it.
apiVersion: tailplane.dev/v1alpha1
kind: RunnerPool
metadata:
  name: gh-nix
spec:
  forge: github
  runsOn: [self-hosted, gh-nix]
  scaling:
    min: 0
    max: 8    # of each organisation
    budget: 20
`
	orgFile = `apiVersion: tailplane.dev/v1alpha1
kind: RunnerEnrollment
metadata: {name: acme}
spec:
  forge: github
  configURL: https://github.com/acme
  isolation: None
  credentials: {secretName: acme-app}
  pools:
  - {name: gh-nix, type: Shared}
  - {name: gh-docker, type: Shared}
  owners:
  - amy@acme.dev # since 2024
  members:
  - "*@acme.dev"
`
)

// configured gives the environment a repository and a controller for its changes.
func (h *env) configured(t *testing.T, desk *plane.Service) *configuration {
	t.Helper()
	cluster := kubetest.Start(t)
	files, err := filepath.Glob("../../deploy/crds/tailplane.dev_runner*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err == nil {
			err = cluster.Apply(t.Context(), b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c := &configuration{cluster: cluster, github: forgetest.NewGitHub(t)}
	c.github.AddAccount("acme", "")
	app, key := c.github.AddApp(t)
	c.github.Install(app, "acme", map[string]string{"contents": "write", "pull_requests": "write", "metadata": "read", "checks": "read", "statuses": "read"})
	c.id = c.github.AddRepository("acme/fleet", false)
	c.github.Push(c.id, "main", forgetest.GitHubCommit{Message: "begin"}, map[string]*string{"fleet/gh-nix.yaml": new(poolFile), "fleet/acme.yaml": new(orgFile)})
	repository, err := git.Open(git.Config{Forge: "github", URL: c.github.URL, Repository: "acme/fleet", Branch: "main",
		Credential: map[string][]byte{"github_app_id": []byte(strconv.FormatInt(app, 10)), "github_app_private_key": key}})
	if err != nil {
		t.Fatal(err)
	}
	api, err := kube.Connect(cluster.AdminConfig(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	changes := api.Changes(cluster.Namespace(t))
	if c.admin, err = client.New(cluster.AdminConfig(), client.Options{}); err != nil {
		t.Fatal(err)
	}
	c.desk = &plane.ChangeService{Plane: desk, Repository: repository, Store: changes, Layout: gitops.Manifests{Pattern: "fleet/{name}.yaml"}, DryRun: changes.DryRun, Link: func(id string) string { return "https://dashboard/changes/" + id },
		StillAllowed: func(_ context.Context, a gitops.Approval, org string, v access.Verb) bool {
			name, _, _ := strings.Cut(a.By, "@")
			p, err := access.DecidePlane(somebody(name), v, access.PlanePolicy{Capability: capability}, time.Now())
			if err == nil {
				_, err = p.In(org)
			}
			return err == nil
		}}
	h.board.Replace(plane.KindChange, plane.ChangesSource, nil)
	h.board.Report(plane.Source{Name: plane.ChangesSource, Status: plane.StatusOK})
	ctx, cancel := context.WithCancel(context.Background())
	watch := &plane.ChangePoller{Changes: c.desk, Live: changes.GetSpec, Interval: 500 * time.Millisecond, Log: slog.New(slog.DiscardHandler)}
	var wg sync.WaitGroup
	wg.Go(func() { watch.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return c
}

// proposeSome creates the changes that the pages show: one pending, one approved, and one abandoned.
func (h *env) proposeSome(t *testing.T) {
	t.Helper()
	ask := httpapi.Client{HTTP: http.DefaultClient, Base: h.url, Open: plane.ParseEnvelope}
	as := func(name string) { h.as(somebody(name)) }
	propose := func(who, kind, name, title, reason, patch string) plane.Change {
		as(who)
		e, err := plane.ProposeChange.Call(t.Context(), ask, plane.ProposeRequest{Edit: plane.Edit{Kind: plane.Text(kind), Name: plane.Text(name), Patch: json.RawMessage(patch)}, Title: title, Reason: plane.Reason(reason)})
		if err != nil {
			t.Fatal(err)
		}
		return e.Data
	}
	given := propose("pat", "RunnerPool", "gh-nix", "Keep runners warm", "people wait for the first one", `{"scaling":{"min":2}}`)
	_, err := plane.CloseChange.Call(t.Context(), ask, plane.CloseRequest{ID: given.ID, Reason: "they would cost more than they save"})
	waits := propose("amy", "RunnerEnrollment", "acme", "Ann administers acme too", "Amy is away in August", `{"owners":["amy@acme.dev","ann@acme.dev"]}`)
	as("pat")
	_, aerr := plane.ApproveChange.Call(t.Context(), ask, plane.DecideRequest{ID: waits.ID, Head: waits.Head, Reason: "she works there"})
	if err := errors.Join(err, aerr); err != nil {
		t.Fatal(err)
	}
	as("alice")
}

// open returns the open change of an object.
func (c *configuration) open(name string) (plane.Change, error) {
	for _, o := range c.desk.Plane.Store.List(plane.KindChange).Objects {
		if x, ok := o.(plane.Change); ok && x.Name == name && (x.State == string(gitops.StateOpen) || x.State == string(gitops.StateApproved)) {
			return x, nil
		}
	}
	return plane.Change{}, fmt.Errorf("no change of %s is open", name)
}

// push adds another person's commit to the branch of the open change of gh-nix.
func (c *configuration) push() error {
	x, err := c.open("gh-nix")
	if err != nil {
		return err
	}
	text := strings.Replace(c.onMain(), "budget: 20", "budget: 400", 1)
	c.github.Push(c.id, x.Branch, forgetest.GitHubCommit{Message: "mine", AuthorName: "eve", AuthorEmail: "eve@acme.dev", AuthorLogin: "eve"}, map[string]*string{"fleet/gh-nix.yaml": &text})
	return nil
}

// edit adds another person's commit to the branch that is applied.
func (c *configuration) edit() error {
	text := c.onMain() + "# edited\n"
	c.github.Push(c.id, "main", forgetest.GitHubCommit{Message: "mine", AuthorName: "eve", AuthorEmail: "eve@acme.dev", AuthorLogin: "eve"}, map[string]*string{"fleet/gh-nix.yaml": &text})
	return nil
}

// apply acts as the GitOps tool that applies the repository.
func (c *configuration) apply() error {
	spec, _, err := gitops.ReadSpec([]byte(c.onMain()), gitops.Ref{Kind: "RunnerPool", Name: "gh-nix"})
	if err != nil {
		return err
	}
	b, err := json.Marshal(map[string]any{"apiVersion": "tailplane.dev/v1alpha1", "kind": "RunnerPool", "metadata": map[string]any{"name": "gh-nix"}, "spec": spec})
	if err != nil {
		return err
	}
	o := new(unstructured.Unstructured)
	if err := json.Unmarshal(b, o); err != nil {
		return err
	}
	return c.admin.Patch(context.Background(), o, client.RawPatch("application/apply-patch+yaml", b), client.FieldOwner("argo"), client.ForceOwnership)
}

// away makes the forge unreachable, and there restores it.
func (c *configuration) away() {
	c.github.Fault(func(*http.Request) *forgetest.Fault { return &forgetest.Fault{Status: http.StatusBadGateway} })
}

func (c *configuration) there() {
	c.github.Fault(func(*http.Request) *forgetest.Fault { return nil })
}

// onMain returns the pool's file on the branch that is applied.
func (c *configuration) onMain() string {
	return c.github.Commit(c.id, "main").Files["fleet/gh-nix.yaml"]
}

package server

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/fleet/gitops/tfvars"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/git"
	"github.com/tailplane/tailplane/internal/plane/kube"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/tailnet"
)

// pollInterval is how often the plane checks open changes, unless the settings set it.
const pollInterval = time.Minute

// driftEvery is how often the plane compares the repository with the cluster.
const driftEvery = 5 * time.Minute

// openRepository reads the credential and opens the repository; nil without a repository.
func openRepository(g settings.GitOps) (*git.Repository, error) {
	if !g.Set() {
		return nil, nil
	}
	credential, err := readCredential(g.CredentialDir)
	if err != nil {
		return nil, fmt.Errorf("plane.gitops.credentialDir: %w", err)
	}
	var bundle []byte
	if g.CAFile != "" {
		if bundle, err = os.ReadFile(g.CAFile); err != nil {
			return nil, fmt.Errorf("plane.gitops.caFile: %w", err)
		}
	}
	repo, err := git.Open(git.Config{Forge: g.Forge, URL: g.URL, APIURL: g.APIURL, CABundle: bundle, Repository: g.Repository, Branch: g.Branch, Credential: credential, Logins: g.Logins})
	if err != nil {
		return nil, fmt.Errorf("plane.gitops: %w", err)
	}
	return repo, nil
}

// readCredential reads the keys of a mounted Secret.
func readCredential(dir string) (map[string][]byte, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), ".") { // a kubelet's links, with which it replaces all files at once
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return nil, err
		}
		data[f.Name()] = b
	}
	if len(data) == 0 {
		return nil, fmt.Errorf("the directory %s is empty", dir)
	}
	return data, nil
}

// openFormat returns the format in which the repository stores objects.
func openFormat(g settings.GitOps) (plane.RepositoryLayout, error) {
	if g.Format != settings.FormatTfvars {
		return gitops.Manifests{Pattern: g.Path}, nil
	}
	var stacks []tfvars.Stack
	for _, s := range g.Stacks {
		stacks = append(stacks, tfvars.Stack(s))
	}
	book, err := tfvars.NewStacks(stacks...)
	if err != nil {
		return nil, fmt.Errorf("plane.gitops.stacks: %w", err)
	}
	return book, nil
}

// newChanges wires configuration changes and enrollments.
func (s *planeServer) newChanges(api *kube.Connection) error {
	g := s.set.Plane.GitOps
	repo, err := openRepository(g)
	if err != nil {
		return err
	}
	cached := api.Changes(s.set.Signin.SystemNamespace)
	book, err := openFormat(g)
	if err != nil {
		return err
	}
	s.changes = &plane.ChangeService{Plane: s.service, Store: cached, Layout: book, DryRun: cached.DryRun, StillAllowed: s.approverCheck(nil), Link: func(string) string { return "" }}
	if repo != nil { // keep the interface nil; a nil pointer in it would not be nil
		s.changes.Repository = repo
	}
	rules := fleetRules(s.set.Fleet)
	s.changes.BrokenRules = func(ctx context.Context, r gitops.Ref, spec map[string]any) ([]plane.Rule, error) {
		return cached.BrokenRules(ctx, rules, r, spec)
	}
	every := time.Duration(g.PollInterval)
	if every == 0 {
		every = pollInterval
	}
	if repo != nil && book.Note() == "" { // a format that allows no dry run allows no comparison
		s.drift = &plane.DriftCheck{Store: s.service.Store, Now: s.service.Now, Pattern: g.Path, Live: cached.ListSpecs, DryRunSpec: cached.DryRunSpec, Interval: driftEvery, Triggers: make(chan struct{}, 1), Log: s.log,
			Read: func(ctx context.Context, path string) (gitops.File, error) {
				return repo.ReadFile(ctx, "", path)
			},
			Files: func(ctx context.Context) (plane.RepositoryFiles, error) { return repo.Files(ctx, g.Path) }}
	}
	s.changeWatch = &plane.ChangePoller{Changes: s.changes, Live: cached.GetSpec, Interval: every, Log: s.log}
	s.enroll = &plane.EnrollmentService{Plane: s.service, Changes: s.changes}
	if s.set.Fleet.Approval == settings.ApprovalPlane {
		s.enroll.Writer = api.Enrollments(s.set.Fleet.Approver)
	}
	return nil
}

// triggerDriftChecks triggers a comparison of the repository. It does not trigger the fleet: the plane has no right to write anything that the fleet
// watches.
func (s *planeServer) triggerDriftChecks() []plane.Look {
	looks := []plane.Look{{Source: "fleet", Message: "The fleet compares the forge and the cluster every " + httpapi.Duration(s.set.Fleet.DriftCheckInterval).String() + " (fleet.truthCheckEvery). The plane does not trigger it."}}
	if s.drift != nil {
		s.drift.Trigger()
		looks = append(looks, plane.Look{Source: plane.DriftSource, Triggered: true, Message: "The plane compares the repository with the cluster again. It reports a difference that has existed for five minutes."})
	}
	return looks
}

// approverCheck returns a function that reports whether the approver of a change still has the right to approve. If the approval names a device,
// the tailnet's current data on that device decides. Otherwise the settings and the lists of organisations decide.
func (s *planeServer) approverCheck(node *tailnet.Node) func(context.Context, gitops.Approval, string, access.Verb) bool {
	policy := s.set.PlanePolicy()
	return func(ctx context.Context, a gitops.Approval, org string, v access.Verb) bool {
		c := access.Caller{Login: access.Login(a.By), Via: access.ViaProxy} // a caller without tailnet grants
		if node != nil && a.Node != "" {
			seen, err := node.Devices(ctx, a.Node)
			if err != nil {
				return false // unknown: the change needs a new approval
			}
			var there bool
			if c, there = seen[a.Node]; !there || c.Identity() != a.By {
				return false
			}
		}
		policy := policy
		policy.Orgs = s.orgs()
		p, err := access.DecidePlane(c, v, policy, time.Now())
		if err != nil {
			return false
		}
		_, err = p.In(org)
		return err == nil
	}
}

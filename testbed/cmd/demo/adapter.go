package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// Pods of the namespace batch are in two clusters; everything else is in the home cluster.
const adapterConfig = `apiVersion: mca.tailplane.dev/v1alpha1
kind: Config
epoch: 1
home: east
clusters:
- {name: east, slot: 0, inCluster: true}
- {name: west, slot: 1, allowLoopback: true, credentials: {secret: west}}
rules:
- name: batch
  match: {apiGroups: [""], resources: [pods], namespaces: [batch]}
  target:
    spread:
      members: [east, west]
      place: [{labels: "tier in (gold)", cluster: west}]
      strategy: hash
`

// The account of the pod, with rights only in batch.
const adapterAccount = `apiVersion: v1
kind: Namespace
metadata: {name: batch}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: app, namespace: batch}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: app, namespace: batch}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: edit}
subjects: [{kind: ServiceAccount, name: app, namespace: batch}]
`

// adapterShow is the state of the chapter about the adapter.
type adapterShow struct {
	*show
	east, west *kubetest.Cluster
	kubeconfig string // of the application beside the adapter
}

// adapter shows an unmodified kubectl that works with two clusters as with one.
func (s *show) adapter(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	a := &adapterShow{show: s, east: s.env.Cluster, west: s.sites[0].Cluster}
	process, err := a.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, process.Close()) }()
	a.kubeconfig = process.Kubeconfig
	s.note("mca runs as the sidecar of a pod: kubectl has its address, its CA and a token for this adapter only")
	a.readAndCreate(ctx)
	if err := a.watch(ctx); err != nil {
		return err
	}
	return a.loseCluster(ctx)
}

// start prepares both clusters and starts the adapter.
func (a *adapterShow) start(ctx context.Context) (*testenv.Adapter, error) {
	home, err := a.prepare(ctx, a.east, "in-east")
	if err != nil {
		return nil, err
	}
	remote, err := a.prepare(ctx, a.west, "in-west")
	if err != nil {
		return nil, err
	}
	return testenv.StartAdapter(ctx, filepath.Join(a.dir, "pod"), testenv.AdapterOptions{
		Server: a.east.Server, CA: a.east.CA, Token: home, Namespace: "batch", Config: adapterConfig,
		Secrets: map[string]map[string]string{"west": {"server": a.west.Server, "ca.crt": string(a.west.CA), "token": remote}},
	})
}

// prepare creates the account and one pod in a cluster. It returns a token of the account.
func (a *adapterShow) prepare(ctx context.Context, c *kubetest.Cluster, pod string) (token string, err error) {
	if err := c.Apply(ctx, []byte(adapterAccount)); err != nil {
		return "", err
	}
	if token, err = a.admin(ctx, c, "create token app -n batch"); err != nil {
		return "", err
	}
	_, err = a.admin(ctx, c, "run "+pod+" --image=example.test/app -n batch")
	return token, err
}

// admin runs kubectl as the administrator of a cluster, without the adapter. It returns the trimmed output.
func (a *adapterShow) admin(ctx context.Context, c *kubetest.Cluster, run string) (string, error) {
	out, errs, exit := kubetest.Kubectl(ctx, c.Kubeconfig, strings.Fields(run)...)
	if exit != 0 {
		return "", fmt.Errorf("kubectl %s: %s", run, errs)
	}
	return strings.TrimSpace(out), nil
}

// app runs kubectl through the adapter, prints it with its output, and checks the claim.
func (a *adapterShow) app(ctx context.Context, run string, exit int, says string, ok func(out string) bool) {
	out, errs, code := kubetest.Kubectl(ctx, a.kubeconfig, strings.Fields(run)...)
	a.command("app", "kubectl %s", run)
	a.output(out + errs)
	a.claim(code == exit && ok(out+errs), "%s", says)
}

// readAndCreate shows that a list covers both clusters, and that labels select the cluster of a new pod.
func (a *adapterShow) readAndCreate(ctx context.Context) {
	a.app(ctx, "get pods -o wide", 0, "one list has the pods of both clusters", func(out string) bool {
		return strings.Contains(out, "in-east") && strings.Contains(out, "in-west") && strings.Contains(out, "CLUSTER")
	})
	const create = "run new --image=example.test/app --labels=tier=gold"
	a.app(ctx, create, 0, "the labels of a new pod select its cluster", func(string) bool {
		where, err := a.admin(ctx, a.west, "get pod new -n batch -o name")
		return err == nil && where == "pod/new"
	})
	a.app(ctx, "get pod new -o name", 0, "kubectl finds the pod by its name", func(out string) bool {
		return strings.TrimSpace(out) == "pod/new"
	})
}

// watch shows that one watch covers both clusters.
func (a *adapterShow) watch(ctx context.Context) error {
	const run = "get pods --watch-only -o name --request-timeout=5s"
	watched := make(chan string, 1)
	go func() {
		out, _, _ := kubetest.Kubectl(ctx, a.kubeconfig, strings.Fields(run)...)
		watched <- out
	}()
	if err := pause(ctx, time.Second); err != nil { // until the watch is open
		return err
	}
	for name, c := range map[string]*kubetest.Cluster{"seen-east": a.east, "seen-west": a.west} {
		if _, err := a.admin(ctx, c, "run "+name+" --image=example.test/app -n batch"); err != nil {
			return err
		}
	}
	out := <-watched
	a.command("app", "kubectl "+run)
	a.output(out)
	a.claim(strings.Contains(out, "seen-east") && strings.Contains(out, "seen-west"), "one watch shows new pods of both clusters")
	return nil
}

// loseCluster shows that the adapter reports an unavailable cluster, and recovers when the cluster is back.
func (a *adapterShow) loseCluster(ctx context.Context) error {
	a.note("the demo kills the API server of west")
	if err := a.west.Kill(); err != nil {
		return err
	}
	a.app(ctx, "get pods", 1, "the list fails with an error that names west, because half a list would look like deletions",
		func(out string) bool { return strings.Contains(out, "west") })
	a.app(ctx, "get pod in-east -o name", 0, "pods in east are still available", func(out string) bool {
		return strings.Contains(out, "in-east")
	})
	if err := a.west.Restart(ctx); err != nil {
		return err
	}
	began := time.Now()
	for {
		out, errs, code := kubetest.Kubectl(ctx, a.kubeconfig, "get", "pods", "-o", "name")
		if code == 0 || ctx.Err() != nil {
			a.command("app", "kubectl get pods -o name")
			a.output(out + errs)
			a.claim(strings.Contains(out, "in-west") && strings.Contains(out, "in-east"),
				"the list is complete again after the restart of west (%.1f s)", time.Since(began).Seconds())
			return nil
		}
	}
}

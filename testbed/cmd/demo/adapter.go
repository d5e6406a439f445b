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

// adapter shows an unmodified kubectl that works with two clusters as with one.
func (s *show) adapter(ctx context.Context) error {
	east, west := s.env.Cluster, s.sites[0].Cluster
	limit, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	admin := func(c *kubetest.Cluster, run string) (string, error) {
		out, errs, exit := kubetest.Kubectl(limit, c.Kubeconfig, strings.Fields(run)...)
		if exit != 0 {
			return "", fmt.Errorf("kubectl %s: %s", run, errs)
		}
		return strings.TrimSpace(out), nil
	}
	tokens := make([]string, 2)
	for i, c := range []*kubetest.Cluster{east, west} {
		if err := c.Apply(limit, []byte(adapterAccount)); err != nil {
			return err
		}
		var err error
		if tokens[i], err = admin(c, "create token app -n batch"); err != nil {
			return err
		}
		if _, err := admin(c, fmt.Sprintf("run in-%s --image=example.test/app -n batch", []string{"east", "west"}[i])); err != nil {
			return err
		}
	}
	a, err := testenv.StartAdapter(limit, filepath.Join(s.dir, "pod"), testenv.AdapterOptions{
		Server: east.Server, CA: east.CA, Token: tokens[0], Namespace: "batch", Config: adapterConfig,
		Secrets: map[string]map[string]string{"west": {"server": west.Server, "ca.crt": string(west.CA), "token": tokens[1]}},
	})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := a.Close(); cerr != nil {
			err = errors.Join(err, cerr)
		}
	}()
	s.note("mca runs as the sidecar of a pod: kubectl has its address, its CA and a token for this adapter only")
	app := func(run string, exit int, says string, ok func(out string) bool) {
		out, errs, code := kubetest.Kubectl(limit, a.Kubeconfig, strings.Fields(run)...)
		s.command("app", "kubectl %s", run)
		s.output(out + errs)
		s.claim(code == exit && ok(out+errs), "%s", says)
	}
	app("get pods -o wide", 0, "one list has the pods of both clusters", func(out string) bool {
		return strings.Contains(out, "in-east") && strings.Contains(out, "in-west") && strings.Contains(out, "CLUSTER")
	})
	app("run new --image=example.test/app --labels=tier=gold", 0, "the labels of a new pod select its cluster", func(string) bool {
		where, err := admin(west, "get pod new -n batch -o name")
		return err == nil && where == "pod/new"
	})
	app("get pod new -o name", 0, "kubectl finds the pod by its name", func(out string) bool { return strings.TrimSpace(out) == "pod/new" })

	watched := make(chan string, 1)
	go func() {
		out, _, _ := kubetest.Kubectl(limit, a.Kubeconfig, "get", "pods", "--watch-only", "-o", "name", "--request-timeout=5s")
		watched <- out
	}()
	if err := pause(ctx, time.Second); err != nil { // until the watch is open
		return err
	}
	for name, c := range map[string]*kubetest.Cluster{"seen-east": east, "seen-west": west} {
		if _, err := admin(c, "run "+name+" --image=example.test/app -n batch"); err != nil {
			return err
		}
	}
	out := <-watched
	s.command("app", "kubectl get pods --watch-only -o name --request-timeout=5s")
	s.output(out)
	s.claim(strings.Contains(out, "seen-east") && strings.Contains(out, "seen-west"), "one watch shows new pods of both clusters")

	s.note("the demo kills the API server of west")
	if err := west.Kill(); err != nil {
		return err
	}
	app("get pods", 1, "the list fails with an error that names west, because half a list would look like deletions", func(out string) bool { return strings.Contains(out, "west") })
	app("get pod in-east -o name", 0, "pods in east are still available", func(out string) bool { return strings.Contains(out, "in-east") })
	if err := west.Restart(limit); err != nil {
		return err
	}
	began := time.Now()
	for {
		out, errs, code := kubetest.Kubectl(limit, a.Kubeconfig, "get", "pods", "-o", "name")
		if code == 0 || limit.Err() != nil {
			s.command("app", "kubectl get pods -o name")
			s.output(out + errs)
			s.claim(strings.Contains(out, "in-west") && strings.Contains(out, "in-east"), "the list is complete again after the restart of west (%.1f s)", time.Since(began).Seconds())
			return nil
		}
	}
}

package gossip

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/gossip/controller"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// secondCluster is another cluster with an access server, on the tailnet of the shared environment.
type secondCluster struct {
	env   *attacktest.Env
	there bool
}

// second is the cluster that twoClusters starts once for all tests.
var second secondCluster

// twoClusters returns two environments whose access servers list each other: the shared one, east, and west. West
// accepts no private endpoint except that of east.
func twoClusters(t *testing.T) (east, west *attacktest.Env) {
	t.Helper()
	east = attacktest.Start(t)
	n := &second
	ctx, cancel := context.WithTimeout(t.Context(), 2*attacktest.Long)
	defer cancel()
	began := time.Now()
	if n.env == nil {
		var err error
		n.env, err = attacktest.Run(ctx, testenv.Options{Beside: east.Env, ClusterName: "west", Hostname: "tka-west",
			Settings: map[string]string{"api.limits": testenv.NoLimits, "gossip.allowEndpoints": "[127.0.0.1/32]"}})
		if err != nil {
			n.env = nil
			t.Fatal(err)
		}
		testenv.AtEnd(n.close)
		n.there = true
		if err := east.Net.WaitPeer(ctx, east.Alice(t).Node, "tka-west"); err != nil {
			t.Fatal(err)
		}
	} else if !n.there {
		serveAgain(t, n.env)
		n.there = true
	} else {
		began = time.Time{}
	}
	west = n.env
	for s, other := range map[*attacktest.Env]string{east: "west", west: "east"} {
		attacktest.Eventually(t, attacktest.Long, s.Server()+" lists "+other, func() bool {
			c, _ := clusterOf(t, s, other)
			return aliveTo(t, s, other) && c.LastSeen.After(began) // and not its entry from before the restart
		})
	}
	return east, west
}

// serveAgain restarts the access server.
func serveAgain(t *testing.T, s *attacktest.Env) {
	t.Helper()
	const serving = `"access is serving"`
	if err := s.Access.Stop(attacktest.Long); err != nil { // still running if a test failed in between
		t.Fatal(err)
	}
	before := strings.Count(s.Access.Output(), serving) // one log contains all its runs
	if err := s.StartAccess(t.Context()); err != nil {
		t.Fatal(err)
	}
	attacktest.Eventually(t, attacktest.Long, "it serves again", func() bool { return strings.Count(s.Access.Output(), serving) > before })
}

func (n *secondCluster) close() error {
	if n.env == nil {
		return nil
	}
	return n.env.Close()
}

// clustersOf returns all clusters that a server lists for alice.
func clustersOf(t *testing.T, s *attacktest.Env) (list []gossip.Cluster) {
	t.Helper()
	a := s.Ask(t, attacktest.Start(t).Alice(t), "GET", attacktest.API+"/memberlist?state=all", "")
	for began := time.Now(); a.Code() == problem.IdentityUnavailable && time.Since(began) < attacktest.Long; {
		a = s.Ask(t, attacktest.Start(t).Alice(t), "GET", attacktest.API+"/memberlist?state=all", "")
	}
	if a.Status != http.StatusOK {
		t.Fatalf("memberlist: %v", a)
	}
	attacktest.Decode(t, a.Body, &list)
	return list
}

// clusterOf returns the entry with that name and, unless key is zero, with that key.
func clusterOf(t *testing.T, s *attacktest.Env, name string) (c gossip.Cluster, ok bool) {
	t.Helper()
	for _, c := range clustersOf(t, s) {
		if c.Name == name {
			return c, true
		}
	}
	return c, false
}

// aliveTo reports whether the server lists the cluster as met and alive.
func aliveTo(t *testing.T, s *attacktest.Env, name string) bool {
	t.Helper()
	c, ok := clusterOf(t, s, name)
	return ok && c.Verified && !c.Conflict && c.State == gossip.Alive
}

// unmoved fails unless the cluster is still listed unchanged and is available. Its last-seen time and its state may
// change, because servers on a busy machine can be late without any attack.
func unmoved(t *testing.T, s *attacktest.Env, what string, was gossip.Cluster) {
	t.Helper()
	facts := func(c gossip.Cluster) gossip.Cluster {
		c.State, c.LastSeen, c.AuditLogs, c.Members = "", time.Time{}, nil, slices.Clone(c.Members)
		for i := range c.Members {
			c.Members[i].State, c.Members[i].LastSeen = "", time.Time{}
		}
		return c
	}
	switch now, ok := clusterOf(t, s, was.Name); {
	case !ok:
		t.Errorf("%s: ok is false, %s, %+v, %+v", what, was.Name, now, was)
		return
	case !reflect.DeepEqual(facts(now), facts(was)):
		t.Errorf("%s: reflect.DeepEqual(facts(now), facts(was)) is false, %s, %+v, %+v", what, was.Name, now, was)
		return
	case now.State == gossip.Gone:
		t.Errorf("%s: now.State = %q; %s", what, now.State, was.Name)
		return
	}
	attacktest.Eventually(t, attacktest.Long, what+": "+was.Name+" is available", func() bool { return availableTo(t, s, was.Name) })
}

// inOneOf calls try up to three times. On a busy machine a server may once, correctly, mark its neighbour dead. The
// effect of an attack appears in every attempt.
func inOneOf(t *testing.T, what string, try func() error) {
	t.Helper()
	var err error
	for range 3 {
		if err = try(); err == nil {
			return
		}
		t.Logf("%s: %v", what, err)
	}
	t.Errorf("%s, time and again: %v", what, err)
}

func configMapOf(t *testing.T, s *attacktest.Env, name string) map[string]string {
	t.Helper()
	var cm corev1.ConfigMap
	if err := s.KubeClient.Get(context.WithoutCancel(t.Context()), client.ObjectKey{Namespace: testenv.SystemNamespace, Name: name}, &cm); err != nil {
		t.Fatal(err)
	}
	return cm.Data
}

// pinned holds the trusted identities: keys by cluster, and clusters by node.
type pinned struct{ Clusters, Nodes map[string]string }

func pinsOf(t *testing.T, s *attacktest.Env) (p pinned) {
	t.Helper()
	attacktest.Decode(t, configMapOf(t, s, controller.PinsConfigMap)["pins.json"], &p)
	return p
}

// rejectedBy returns how many records the server rejected for that reason.
func rejectedBy(t *testing.T, s *attacktest.Env, why gossip.Reason) int {
	t.Helper()
	return int(s.Metrics(t, s.Access)[fmt.Sprintf("tailplane_gossip_rejected_total{reason=%q}", why)])
}

// toldSince returns the gossip events in the server's audit log since the mark. A non-empty node selects its events.
func toldSince(t *testing.T, m attacktest.LogMark, kind gossip.EventKind, node string) (out []audit.Entry) {
	t.Helper()
	return slices.DeleteFunc(m.Recorded(t), func(e audit.Entry) bool {
		return string(e.Verb) != "gossip."+string(kind) || node != "" && e.Object != node
	})
}

// idleSince fails if the server wrote any object since the mark except gossip's two ConfigMaps. A message of a member
// must never make a cluster create, bind or trust anything.
func idleSince(t *testing.T, m attacktest.LogMark) {
	t.Helper()
	for _, account := range []string{attacktest.AccessAccount, attacktest.OperatorAccount} {
		for _, k := range m.Writes(t, account) {
			switch ours := k.ObjectRef.Name == controller.PinsConfigMap || k.ObjectRef.Name == controller.MembersConfigMap; {
			case k.Verb != "update":
				t.Errorf("because of a message of a member: k.Verb = %q, want %q; account = %s", k.Verb, "update", account)
			case k.ObjectRef.Resource != "configmaps":
				t.Errorf("because of a message of a member: got %q, want %q; account = %s", k.ObjectRef.Resource, "configmaps", account)
			case !ours:
				t.Errorf("because of a message of a member: ours is false; account = %s, %v", account, k)
			}
		}
	}
}

// nodeOf returns the only server of a listed cluster.
func nodeOf(t *testing.T, s *attacktest.Env, cluster string) (node string) {
	t.Helper()
	attacktest.Eventually(t, attacktest.Long, cluster+" has a server", func() bool {
		c, _ := clusterOf(t, s, cluster)
		for _, m := range c.Members { // there may have been replicas
			if m.State == gossip.Alive {
				node = m.Node
			}
		}
		return node != ""
	})
	return node
}

// runTKA runs the client as alice.
func runTKA(t *testing.T, s *attacktest.Env, args ...string) testenv.Result {
	t.Helper()
	res, err := attacktest.Start(t).Alice(t).Run(t.Context(), "tka", args...)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// shows waits until the client prints the text for alice. A cluster that was silent for a moment is not listed.
func shows(t *testing.T, s *attacktest.Env, text string, args ...string) (res testenv.Result) {
	t.Helper()
	attacktest.Eventually(t, attacktest.Long, fmt.Sprintf("tka %v shows %s", args, text), func() bool {
		res = runTKA(t, s, args...)
		return res.Exit == 0 && strings.Contains(res.Stdout, text)
	})
	return res
}

package audit

import (
	"context"
	"os"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// clusterOf returns the entry of a cluster in the list of the server.
func clusterOf(t *testing.T, s *attacktest.Env, name string) (c gossip.Cluster) {
	t.Helper()
	var list []gossip.Cluster
	attacktest.Decode(t, s.Ask(t, attacktest.Start(t).Alice(t), "GET", attacktest.API+"/memberlist?state=all", "").Body, &list)
	for _, c = range list {
		if c.Name == name && c.Verified {
			return c
		}
	}
	return gossip.Cluster{}
}

// logOf returns the statement about an audit log that the server lists for a cluster.
func logOf(t *testing.T, s *attacktest.Env, cluster, log string) audit.SignedHead {
	t.Helper()
	for _, h := range clusterOf(t, s, cluster).AuditLogs {
		if h.Last.Log == log {
			return h
		}
	}
	return audit.SignedHead{}
}

// verified returns the report about an audit log.
func verified(t *testing.T, path string) audit.Report {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := audit.Verify(audit.Check{}, audit.Source{Name: path, Reader: f})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// AU-07. An administrator of one cluster replaces the audit file by an older, valid copy, and removes what their own cluster has noted. The
// server of another cluster has witnessed the last line. It returns the signed statement to the restarted server, which says rolledBack, and
// shows the loss to all.
//
// Guard: audit.(*Log).Check; gossip.witness and (*engine).recallOwn; server.(*auditWitness).
func TestAU07_AnOlderCopyOfTheAuditFile(t *testing.T) {
	east := attacktest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*attacktest.Long)
	defer cancel()
	west, err := attacktest.Run(ctx, testenv.Options{Beside: east.Env, ClusterName: "west", Hostname: "tka-west",
		Settings: map[string]string{"api.limits": testenv.NoLimits, "gossip.allowEndpoints": "[127.0.0.1/32]"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := west.Close(); err != nil {
			t.Error(err)
		}
	})
	alice := east.Alice(t)
	if err := east.Net.WaitPeer(ctx, alice.Node, "tka-west"); err != nil {
		t.Fatal(err)
	}
	file := west.AuditFile()
	log := verified(t, file).Log
	attacktest.Eventually(t, attacktest.Long, "east has witnessed the log of west", func() bool { return logOf(t, east, "west", log).Last.Log == log })
	copied, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		west.Ask(t, alice, "GET", attacktest.API+"/whoami", "")
	}
	restart := func(change func()) {
		t.Helper()
		const serving = `"access is serving"`
		if err := west.Access.Stop(attacktest.Long); err != nil {
			t.Fatal(err)
		}
		change()
		before := strings.Count(west.Access.Output(), serving)
		if err := west.StartAccess(t.Context()); err != nil {
			t.Fatal(err)
		}
		attacktest.Eventually(t, attacktest.Long, "it serves again", func() bool { return strings.Count(west.Access.Output(), serving) > before })
	}
	forget := func() { // what the cluster itself has noted
		var l coordinationv1.Lease
		if err := west.KubeClient.Get(ctx, client.ObjectKey{Namespace: testenv.SystemNamespace, Name: "tailplane-access"}, &l); err != nil {
			t.Fatal(err)
		}
		noted := len(l.Annotations)
		l.Annotations = nil
		if err := west.KubeClient.Update(ctx, &l); err != nil {
			t.Fatal(err)
		}
		if noted == 0 {
			t.Error("the Lease had no note")
		}
	}
	rolledBack := func() int { return strings.Count(west.Access.Output(), `"code":"rolledBack"`) }
	machine := east.NewMachine(t, alice)
	verify := []string{"audit", "verify", "--witness", "--cluster", "west", file}

	t.Run("intact", func(t *testing.T) {
		var end audit.Report
		restart(func() { end = verified(t, file) })
		attacktest.Eventually(t, attacktest.Long, "east has witnessed the new run", func() bool { return logOf(t, east, "west", log).Last.Head.Seq > end.Last.Seq })
		attacktest.Eventually(t, attacktest.Long, "west compares its log", func() bool { return logOf(t, west, "west", log).Last.Head.Seq > end.Last.Seq })
		if n := rolledBack(); n > 0 {
			t.Errorf("an intact log was called rolled back %d times", n)
		}
		if r := machine.Exec(0, "tka", verify...); !strings.Contains(r.Stdout, "Witnessed up to") {
			t.Errorf("tka says:\n%s", r.Stdout)
		}
	})

	var lost audit.SignedHead
	restart(func() {
		attacktest.Eventually(t, attacktest.Long, "east has witnessed the end", func() bool {
			c := clusterOf(t, east, "west")
			lost = logOf(t, east, "west", log)
			return c.State == gossip.Gone && lost.Last.Head.Seq > 20
		})
		forget()
		if err := os.WriteFile(file, copied, 0o600); err != nil {
			t.Fatal(err)
		}
		if r := verified(t, file); !r.OK() {
			t.Errorf("the older copy alone is not intact: %v", r.Findings)
		}
	})
	attacktest.Eventually(t, attacktest.Long, "west says rolledBack", func() bool { return rolledBack() > 0 })
	if !strings.Contains(west.Access.Output(), lost.Last.String()) {
		t.Errorf("the server does not name the line %v", lost.Last)
	}
	for _, s := range []*attacktest.Env{east, west} {
		attacktest.Eventually(t, attacktest.Long, "the list names the loss", func() bool { return logOf(t, s, "west", log).RolledBack == lost.Last })
	}
	for name, s := range map[string]*attacktest.Env{"tailplane_gossip_rolled_back": east, "tailplane_audit_rolled_back": west} {
		if n := s.Metrics(t, s.Access)[name]; n != 1 {
			t.Errorf("%s is %v, want 1", name, n)
		}
	}
	if n := east.Metrics(t, east.Access)["tailplane_audit_rolled_back"]; n != 0 {
		t.Errorf("east calls its own log rolled back: %v", n)
	}
	if r := machine.Exec(0, "tka", "clusters"); !strings.Contains(r.Stdout, "audit log rolled back") || !strings.Contains(r.Stderr, lost.Last.Head.String()) {
		t.Errorf("tka clusters says:\n%s%s", r.Stdout, r.Stderr)
	}
	if r := machine.Exec(3, "tka", verify...); !strings.Contains(r.Stdout, lost.Last.Head.String()) {
		t.Errorf("tka audit verify says:\n%s", r.Stdout)
	}
	recorded := attacktest.LogMark{Env: west}.Recorded(t)
	var entries []audit.Entry
	for _, e := range recorded {
		if e.Verb == access.AuditRolledBack {
			entries = append(entries, e)
		}
	}
	if len(entries) != 1 || entries[0].Object != log {
		t.Errorf("the log records %+v, want one entry about %s", entries, log)
	}

	t.Run("a new log", func(t *testing.T) {
		restart(func() {
			if err := os.Rename(file, file+".evidence"); err != nil {
				t.Fatal(err)
			}
		})
		next := verified(t, file).Log
		attacktest.Eventually(t, attacktest.Long, "the list no longer names a loss", func() bool {
			return logOf(t, east, "west", next).Last.Log == next && len(clusterOf(t, east, "west").RolledBack()) == 0
		})
	})
}

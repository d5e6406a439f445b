package tailnet

import (
	"context"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

const gossipPolicy = `{
	"tagOwners": {"tag:tailplane": [], "tag:ci": []},
	"grants": [{"src": ["tag:tailplane"], "dst": ["tag:tailplane"], "ip": ["tcp:7946"]}, {"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"]}],
}`

// DSC-09: Servers find each other in the netmap, and can check who owns an address before they send
// data.
func TestPeers(t *testing.T) {
	tn := tailnettest.Start(t, gossipPolicy)
	east, _ := serverConfig(t, tn)
	a := run(t, east)
	a.up(t)
	west, _ := serverConfig(t, tn)
	west.Hostname = "tka-west"
	changed := a.Changed()
	b := run(t, west)
	b.up(t)
	select {
	case <-changed:
	case <-time.After(long):
		t.Fatal("a new peer is no change")
	}
	id := b.Status().ID
	var got Peer
	eventually(t, "east sees west", func() bool {
		all, err := a.Peers(within(t))
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all, func(p Peer) bool { return p.ID == id })
		if i >= 0 {
			got = all[i]
		}
		return i >= 0
	})
	switch {
	case got.Name != b.Names()[0]:
		t.Errorf("got.Name = %q, want %q", got.Name, b.Names()[0])
	case !slices.Equal(got.Tags, []access.Tag{"tag:tailplane"}):
		t.Errorf("got.Tags (-want +got):\n%s", cmp.Diff([]access.Tag{"tag:tailplane"}, got.Tags))
	case got.Shared:
		t.Errorf("got.Shared is true; got = %+v, %v", got, b.Names())
	case got.Addrs[0].String() != b.Names()[2]:
		t.Errorf("got.Addrs[0].String() = %q, want %q", got.Addrs[0].String(), b.Names()[2])
	}
	one, err := a.Peers(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if two, err := a.Peers(within(t)); err != nil || &one[0] != &two[0] {
		t.Errorf("a new query without a change (%v)", err)
	}

	ln, err := b.ListenPlain(within(t), 7946)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	heard := make(chan string, 4)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			who, err := b.whoIs(context.Background(), c.RemoteAddr().String(), "")
			if err == nil {
				heard <- who.Device.ID
			}
			all, _ := io.ReadAll(io.LimitReader(c, 64))
			heard <- string(all)
			c.Close()
		}
	}()
	at := netip.AddrPortFrom(got.Addrs[0], 7946)
	conn, err := a.Dial(within(t), at)
	if err != nil {
		t.Fatal(err)
	}
	switch who, err := a.WhoIs(within(t), at); {
	case err != nil:
		t.Errorf("the other end: %v", err)
	case who.Device.ID != id:
		t.Errorf("the other end: who.Device.ID = %q, want %q", who.Device.ID, id)
	case !slices.Equal(who.Tags, []access.Tag{"tag:tailplane"}):
		t.Errorf("the other end: who.Tags (-want +got):\n%s", cmp.Diff([]access.Tag{"tag:tailplane"}, who.Tags))
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if from, reported := <-heard, <-heard; from != a.Status().ID || reported != "hello" {
		t.Errorf("west received %q from %s", reported, from)
	}
	if _, err := a.WhoIs(within(t), netip.MustParseAddrPort("100.127.1.1:7946")); problem.CodeOf(err) != problem.NoIdentity {
		t.Errorf("an address of no node: %v", err)
	}
	if conn, err := a.Dial(within(t), netip.MustParseAddrPort("127.0.0.1:1")); err == nil {
		conn.Close()
		t.Error("connected outside the tailnet")
	}

	changed = a.Changed()
	if err := b.end(t); err != nil {
		t.Fatal(err)
	}
	for _, n := range tn.Nodes() {
		if string(n.StableID) == id {
			tn.Delete(n.StableID)
		}
	}
	select {
	case <-changed:
	case <-time.After(long):
		t.Fatal("a peer that is gone is no change")
	}
	eventually(t, "west is gone", func() bool {
		all, err := a.Peers(within(t))
		return err == nil && !slices.ContainsFunc(all, func(p Peer) bool { return p.ID == id })
	})
}

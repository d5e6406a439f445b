package tailnet

import (
	"context"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"tailscale.com/client/tailscale/apitype"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/tailnet/tailnettest"
)

const gossipPolicy = `{
	"tagOwners": {"tag:tailplane": [], "tag:ci": []},
	"grants": [{"src": ["tag:tailplane"], "dst": ["tag:tailplane"], "ip": ["tcp:7946"]}, {"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"]}],
}`

// DSC-09: servers find each other in the netmap, and connect to the node that they mean or to none.
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
	if got.Name != b.Names()[0] || !slices.Equal(got.Tags, []access.Tag{"tag:tailplane"}) || got.Shared || got.Addrs[0].String() != b.Names()[2] {
		t.Errorf("%+v, and its names are %v", got, b.Names())
	}
	one, err := a.Peers(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if two, err := a.Peers(within(t)); err != nil || &one[0] != &two[0] {
		t.Errorf("asked again without a change (%v)", err)
	}

	ln, err := b.ListenPlain(within(t), 7946)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	got1 := make(chan string, 4)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			who, err := b.whoIs(context.Background(), c.RemoteAddr().String())
			if err == nil {
				got1 <- who.Device.ID
			}
			all, _ := io.ReadAll(io.LimitReader(c, 64))
			got1 <- string(all)
			c.Close()
		}
	}()
	conn, who, err := a.DialPeer(within(t), id, 7946)
	if err != nil {
		t.Fatal(err)
	}
	if who.Device.ID != id || !slices.Equal(who.Tags, []access.Tag{"tag:tailplane"}) {
		t.Errorf("the other end is %+v", who)
	}
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if from, said := <-got1, <-got1; from != a.Status().ID || said != "hello" {
		t.Errorf("west heard %q from %s", said, from)
	}
	if _, _, err := a.DialPeer(within(t), "nobody", 7946); problem.CodeOf(err) != problem.NoIdentity {
		t.Errorf("a node that is not there: %v", err)
	}
	// Its address is another's by now: closed without a byte.
	ask := a.askWhoIs
	a.askWhoIs = func(ctx context.Context, addr string) (*apitype.WhoIsResponse, error) {
		r, err := ask(ctx, addr)
		if err == nil {
			node := r.Node.Clone()
			node.StableID = "somebody-else"
			r.Node = node
		}
		return r, err
	}
	var none net.Conn
	if none, _, err = a.DialPeer(within(t), id, 7946); problem.CodeOf(err) != problem.NoIdentity || none != nil {
		t.Errorf("another node at the address: %v %v", none, err)
	}
	if _, said := <-got1, <-got1; said != "" {
		t.Errorf("west heard %q", said)
	}
	a.askWhoIs = ask

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

package cli_test

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// newReplica starts another server of a cluster.
func newReplica(t *testing.T, of *accessServer) (*accessServer, *httptest.Server) {
	t.Helper()
	d := &accessServer{store: of.store, cluster: of.cluster, rules: of.rules, key: of.key}
	d.start()
	srv := httptest.NewServer(d)
	t.Cleanup(srv.Close)
	return d, srv
}

// lists makes a server list the servers of its cluster.
func (d *accessServer) lists(urls ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.servers = urls
	d.start()
}

// A machine that was taught one server learns the others from that server's proved cluster information, and uses them when the first is away.
func TestReplicasAreLearnt(t *testing.T) {
	one, first := newAccessServer(t, "prod-eu")
	two, second := newReplica(t, one)
	one.lists(first.URL, second.URL)
	m := newMachine(t, first.URL)
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	if got := two.received(); len(got) > 0 {
		t.Errorf("the second server received %v while the first is up", got)
	}
	first.Close()
	for _, cmd := range [][]string{{"status"}, {"credential", "--cluster", "prod-eu"}, {"login"}, {"logout"}} {
		if r := m.run(cmd...); r.code != 0 {
			t.Errorf("%v: code %d: %s", cmd, r.code, r.err)
		}
	}
	if r := m.run("status", "--server", first.URL); r.code != 5 {
		t.Errorf("a server selected by name: code %d: %s", r.code, r.err)
	}
}

// A list gives addresses only. A foreign server in it gets the request for its proof and nothing else, and does not stand between the machine
// and the next server.
func TestSGN24_a_foreign_replica(t *testing.T) {
	for _, alone := range []bool{true, false} {
		t.Run(fmt.Sprintf("alone %v", alone), func(t *testing.T) {
			one, first := newAccessServer(t, "prod-eu")
			two, second := newReplica(t, one)
			foreign, srv := newReplica(t, one)
			foreign.mu.Lock()
			foreign.key = keyFor("another")
			foreign.start()
			foreign.mu.Unlock()
			list := []string{first.URL, srv.URL}
			if !alone {
				list = append(list, second.URL)
			}
			one.lists(list...)
			two.lists(list...)
			m := newMachine(t, first.URL)
			if r := m.run("login"); r.code != 0 {
				t.Fatal(r.err)
			}
			first.Close()
			want := map[bool]int{true: 3, false: 0}[alone]
			r := m.run("status")
			if r.code != want {
				t.Errorf("code %d, want %d: %s", r.code, want, r.err)
			}
			if says := strings.Contains(r.err, "is not the one that the server "+first.URL+" knows"); says != alone {
				t.Errorf("the message names the foreign server: %v, want %v: %s", says, alone, r.err)
			}
			foreign.checkRequests(t, requestInfo)
			if strings.Contains(m.read(t, "state/tka/servers.yaml"), "url: "+srv.URL) {
				t.Error("the foreign server was stored")
			}
		})
	}
}

// A list may name only servers of the tailnet, and a bounded number of them. A server of an older version has no list.
func TestListsOfReplicas(t *testing.T) {
	var many []string
	for i := range 50 {
		many = append(many, fmt.Sprintf("http://127.0.0.1:%d", 2000+i))
	}
	for _, tt := range []struct {
		why  string
		list []string
		want int
	}{
		{"an old server", nil, 0},
		{"elsewhere", []string{"https://evil.example", "http://10.0.0.1", "https://169.254.169.254", "https://user:secret@127.0.0.1", "http://127.0.0.1/x", "tka", "", "\x1b[2J"}, 0},
		{"many", many, 8},
	} {
		one, first := newAccessServer(t, "prod-eu")
		if tt.list != nil {
			one.lists(tt.list...)
		}
		m := newMachine(t, first.URL)
		if r := m.run("login"); r.code != 0 {
			t.Fatal(r.err)
		}
		state := m.read(t, "state/tka/servers.yaml")
		lines := slices.Collect(strings.Lines(state))
		got := len(slices.DeleteFunc(lines, func(l string) bool { return !strings.Contains(l, "- http") }))
		if got != tt.want {
			t.Errorf("%s: %d replicas, want %d:\n%s", tt.why, got, tt.want, state)
		}
		first.Close()
		if r := m.run("status", "--timeout", "3s"); tt.want == 0 && r.code != 5 {
			t.Errorf("%s: code %d, want 5: %s", tt.why, r.code, r.err)
		}
	}
}

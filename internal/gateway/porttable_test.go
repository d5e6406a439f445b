package gateway_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/gateway"
)

var portTableStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func portKey(i int) gateway.PortKey {
	return gateway.PortKey{Service: fmt.Sprintf("shop.s%04d", i), Protocol: "TCP", TargetPort: 80}
}

func portKeys(n int) (list []gateway.PortKey) {
	for i := range n {
		list = append(list, portKey(i))
	}
	return list
}

// GTW-18: 1,000 mappings get a port. The next one is refused without any change for the others. A
// restart keeps the table.
func TestPortTableFull(t *testing.T) {
	full, refused, wake := gateway.PortTable{}.Allocate(portKeys(1000), portTableStart)
	switch {
	case len(refused) != 0:
		t.Fatalf("len(refused) = %v, want 0", len(refused))
	case !wake.IsZero():
		t.Fatalf("wake.IsZero() is false; %d, %d, wake = %v", len(full.Ports), len(refused), wake)
	case len(full.Ports) != 1000:
		t.Fatalf("len(full.Ports) = %v, want 1000", len(full.Ports))
	}
	if p, _ := full.Lookup(portKey(0)); p != gateway.FirstPort {
		t.Errorf("the first gets %d", p)
	}
	if p, _ := full.Lookup(portKey(999)); p != gateway.LastPort {
		t.Errorf("the last gets %d", p)
	}
	// The new key sorts before all others and still moves none.
	more := append(portKeys(1000), gateway.PortKey{Service: "a.a", Protocol: "TCP", TargetPort: 1})
	over, refused, wake := full.Allocate(more, portTableStart)
	switch {
	case len(refused) != 1:
		t.Errorf("refused: len(refused) = %v, want 1", len(refused))
	case refused[0].Service != "a.a":
		t.Errorf("refused: refused[0].Service = %q, want %q", refused[0].Service, "a.a")
	case !wake.IsZero():
		t.Errorf("refused: wake.IsZero() is false; refused = %v, wake = %v", refused, wake)
	case !slices.Equal(over.Ports, full.Ports):
		t.Errorf("refused: over.Ports = %v, want %v", over.Ports, full.Ports)
	}
	again, err := gateway.ParsePortTable(full.Encode())
	if err != nil || !slices.Equal(again.Ports, full.Ports) {
		t.Errorf("after a restart: %v, %v", again, err)
	}
}

// GTW-18: no other key gets a released port for 10 minutes, also after a restart. The refused
// caller receives the time of its next try.
func TestPortReuseDelay(t *testing.T) {
	full, _, _ := gateway.PortTable{}.Allocate(portKeys(1000), portTableStart)
	fewer := slices.DeleteFunc(portKeys(1000), func(k gateway.PortKey) bool { return k == portKey(500) })
	resting, _, _ := full.Allocate(fewer, portTableStart)
	if _, in := resting.Lookup(portKey(500)); in {
		t.Error("a port at rest is in use")
	}
	stored, err := gateway.ParsePortTable(resting.Encode())
	if err != nil {
		t.Fatal(err)
	}
	late := append(slices.Clone(fewer), portKey(1001))
	for _, minute := range []int{0, 5, 9} {
		_, refused, wake := stored.Allocate(late, portTableStart.Add(time.Duration(minute)*time.Minute))
		if len(refused) != 1 || !wake.Equal(portTableStart.Add(gateway.PortReuseDelay)) {
			t.Errorf("after %d minutes: refused %v, wake %v", minute, refused, wake)
		}
	}
	rested, refused, _ := stored.Allocate(late, portTableStart.Add(gateway.PortReuseDelay))
	switch p, ok := rested.Lookup(portKey(1001)); {
	case len(refused) != 0:
		t.Errorf("after 10 minutes: len(refused) = %v, want 0", len(refused))
	case !ok:
		t.Errorf("after 10 minutes: ok is false; %d, refused = %v", p, refused)
	case p != gateway.FirstPort+500:
		t.Errorf("after 10 minutes: p = %v, want %v", p, gateway.FirstPort+500)
	}
	// The same key can get its port back immediately.
	back, refused, _ := stored.Allocate(portKeys(1000), portTableStart.Add(time.Minute))
	switch p, ok := back.Lookup(portKey(500)); {
	case len(refused) != 0:
		t.Errorf("back to its own: len(refused) = %v, want 0", len(refused))
	case !ok:
		t.Errorf("back to its own: ok is false; %d, refused = %v", p, refused)
	case p != gateway.FirstPort+500:
		t.Errorf("back to its own: p = %v, want %v", p, gateway.FirstPort+500)
	}
}

// For any sequence of requests, a port is never moved and never shared. Another key never gets it
// before its Until time. The order of the requests does not matter.
func TestAllocateProperties(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		table, now := gateway.PortTable{}, portTableStart
		last := map[uint16]struct {
			key gateway.PortKey
			at  time.Time
		}{}
		for range 40 {
			now = now.Add(time.Duration(r.IntN(400)) * time.Second)
			var requested []gateway.PortKey
			for i := range 30 {
				if r.IntN(2) == 0 {
					requested = append(requested, portKey(i), portKey(i))
				}
			}
			next, refused, _ := table.Allocate(requested, now)
			r.Shuffle(len(requested), func(i, j int) { requested[i], requested[j] = requested[j], requested[i] })
			if again, _, _ := table.Allocate(requested, now); string(again.Encode()) != string(next.Encode()) {
				t.Fatal("the order of requests matters")
			}
			if len(refused) != 0 {
				t.Fatalf("refused %v", refused)
			}
			for _, k := range requested {
				p, ok := next.Lookup(k)
				if !ok {
					t.Fatalf("%v has no port", k)
				}
				if old, had := table.Lookup(k); had && old != p {
					t.Fatalf("%v moved from %d to %d", k, old, p)
				}
				if l, used := last[p]; used && l.key != k && now.Sub(l.at) < gateway.PortReuseDelay {
					t.Fatalf("%d was %v's %v ago, and is %v's", p, l.key, now.Sub(l.at), k)
				}
			}
			for _, p := range table.Ports { // in use until now
				if p.Until.IsZero() {
					last[p.MatchPort] = struct {
						key gateway.PortKey
						at  time.Time
					}{p.PortKey, now}
				}
			}
			var err error
			if table, err = gateway.ParsePortTable(next.Encode()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestParsePortTableErrors(t *testing.T) {
	for _, text := range []string{
		``, `null x`, `{"ports":[]} {}`, `{"port":[]}`,
		`{"ports":[{"service":"a.b","protocol":"TCP","targetPort":80,"matchPort":9999}]}`,
		`{"ports":[{"service":"a.b","protocol":"TCP","targetPort":80,"matchPort":11000}]}`,
		`{"ports":[{"service":"a.b","protocol":"SCTP","targetPort":80,"matchPort":10000}]}`,
		`{"ports":[{"service":"","protocol":"TCP","targetPort":80,"matchPort":10000}]}`,
		`{"ports":[{"service":"a.b","protocol":"TCP","targetPort":0,"matchPort":10000}]}`,
		`{"ports":[{"service":"a.b","protocol":"TCP","targetPort":80,"matchPort":10000},{"service":"c.d","protocol":"TCP","targetPort":80,"matchPort":10000}]}`,
		`{"ports":[{"service":"a.b","protocol":"TCP","targetPort":80,"matchPort":10000},{"service":"a.b","protocol":"TCP","targetPort":80,"matchPort":10001}]}`,
	} {
		if table, err := gateway.ParsePortTable([]byte(text)); err == nil {
			t.Errorf("%s is read as %v", text, table)
		}
	}
}

func FuzzParsePortTable(f *testing.F) {
	full, _, _ := gateway.PortTable{}.Allocate(portKeys(3), portTableStart)
	rested, _, _ := full.Allocate(portKeys(2), portTableStart)
	f.Add(full.Encode())
	f.Add(rested.Encode())
	f.Add([]byte(`{"ports":[{"service":"a.b","protocol":"UDP","targetPort":53,"matchPort":10999,"until":"2026-01-01T00:00:00Z"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		table, err := gateway.ParsePortTable(text)
		if err != nil {
			return
		}
		again, err := gateway.ParsePortTable(table.Encode())
		if err != nil || string(again.Encode()) != string(table.Encode()) {
			t.Fatalf("%s is written as %s: %v", text, table.Encode(), err)
		}
		next, _, _ := table.Allocate(portKeys(5), portTableStart)
		if _, err := gateway.ParsePortTable(next.Encode()); err != nil {
			t.Fatal(err)
		}
	})
}

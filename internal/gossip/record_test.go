package gossip

import (
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// one returns valid facts and their key.
func one(t testing.TB) (Facts, ed25519.PrivateKey) {
	t.Helper()
	s := newSim(t, 1, 1, Settings{})
	return s.nodes[0].facts, s.nodes[0].key
}

// payload returns the JSON of a record of f, as text to modify.
func payload(t testing.TB) (string, ed25519.PrivateKey) {
	t.Helper()
	f, key := one(t)
	r, err := Seal(f, Order{7, 1}, Up, func(b []byte) []byte { return ed25519.Sign(key, b) })
	if err != nil {
		t.Fatal(err)
	}
	return string(r.Signed.Payload), key
}

// TestOpen: the limits of a record (GO-05, GO-08, DSC-11).
func TestOpen(t *testing.T) {
	good, key := payload(t)
	open := func(text string) error {
		_, err := Open(Signed{[]byte(text), ed25519.Sign(key, signedMessage([]byte(text)))})
		return err
	}
	if err := open(good); err != nil {
		t.Fatal(err)
	}
	labels := func(n int) string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint("l", i)] = "v"
		}
		b, _ := json.Marshal(m)
		return string(b)
	}
	tests := []struct{ name, old, new string }{
		{"64 KB of labels", `"env":"prod"`, `"env":"` + strings.Repeat("x", 64<<10) + `"`},
		{"33 labels", `{"env":"prod","region":"eu-central"}`, labels(33)},
		{"a label with markup", `"env":"prod"`, `"env":"<script>"`},
		{"a label with an escape", `"env":"prod"`, `"env":"\u001b[31m"`},
		{"a label with bidi characters", `"env":"prod"`, "\"env\":\"a\u202eb\""},
		{"a label key of shell", `"env":"prod"`, `"$(id)":"prod"`},
		{"a label twice", `"env":"prod"`, `"env":"prod","env":"test"`},
		{"a name with YAML", `"name":"prod-0"`, `"name":"a: b"`},
		{"a name in capitals", `"name":"prod-0"`, `"name":"Prod"`},
		{"no name", `"name":"prod-0"`, `"name":""`},
		{"a cluster id with a quote", `"id":"5e0c`, `"id":"'5e0c`},
		{"a host with an escape", `"host":"tka-0.`, `"host":"tka-0\u0007.`},
		{"a node with a slash", `"node":"n`, `"node":"/n`},
		{"9 addresses", `"ips":[`, `"ips":[` + strings.Repeat(`"100.64.0.9",`, 9)},
		{"an address with a zone", `"ips":[`, `"ips":["fe80::1%eth0",`},
		{"generation 2^53", `"generation":7`, `"generation":9007199254740992`},
		{"generation -1", `"generation":7`, `"generation":-1`},
		{"generation 0", `"generation":7`, `"generation":0`},
		{"version 2^31", `"version":1`, `"version":2147483648`},
		{"version as text", `"version":1`, `"version":"1"`},
		{"port 0", `"port":7946`, `"port":0`},
		{"port 65536", `"apiPort":6443`, `"apiPort":65536`},
		{"another form", `"v":1`, `"v":2`},
		{"no key", `"key":"ed25519:`, `"key":"`},
		{"a field twice", `"v":1`, `"v":1,"v":1`},
		{"nested too deep", `"v":1`, `"v":1,"x":[[[[1]]]]`},
		{"null", `"status":"up"`, `"status":null`},
		{"a status of markup", `"status":"up"`, `"status":"<b>"`},
		{"a hash that is none", `"caHash":"sha256:9f`, `"caHash":"sha256:xx`},
		{"software of shell", `"software":"0.4.0"`, `"software":"$(id)"`},
	}
	for _, tt := range tests {
		text := strings.Replace(good, tt.old, tt.new, 1)
		if text == good {
			t.Fatalf("%s: nothing changed", tt.name)
		}
		if err := open(text); err == nil {
			t.Errorf("%s: taken", tt.name)
		}
	}
	for name, text := range map[string]string{
		"unknown fields":         strings.Replace(good, `"v":1`, `"v":1,"later":{"a":[1,2]},"KEY":"nonsense","Node":"other"`, 1),
		"a status that is newer": strings.Replace(good, `"status":"up"`, `"status":"draining"`, 1),
		"32 labels":              strings.Replace(good, `{"env":"prod","region":"eu-central"}`, labels(32), 1),
		"white space":            strings.ReplaceAll(good, `,"`, " ,\n\t\""),
	} {
		if err := open(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(Signed{[]byte(good), make([]byte, 64)}); err == nil {
		t.Error("a signature of zeros is taken")
	}
	if _, err := Open(Signed{[]byte(good), ed25519.Sign(key, []byte(good))}); err == nil {
		t.Error("a signature of another form is taken")
	}
}

func TestSettings(t *testing.T) {
	set, err := Settings{}.WithDefaults()
	switch {
	case err != nil:
		t.Errorf("defaults: %v", err)
	case set.Interval != 300*time.Millisecond:
		t.Errorf("defaults: set.Interval = %v, want %v", set.Interval, 300*time.Millisecond)
	case set.Fanout != 3:
		t.Errorf("defaults: set.Fanout = %v, want 3", set.Fanout)
	case set.MaxMembers != 2048:
		t.Errorf("defaults: set.MaxMembers = %v, want 2048", set.MaxMembers)
	case set.MaxMessageBytes != 16384:
		t.Errorf("defaults: set.MaxMessageBytes = %v, want 16384", set.MaxMessageBytes)
	}
	for _, bad := range []Settings{{Interval: -1}, {Fanout: -1}, {MaxMembers: -1}, {MaxMessageBytes: 100}, {MaxMessageBytes: MaxMessage + 1},
		{Network: "A B"}, {ForgetAfter: -1}, {Pins: []Pin{{Cluster: "x"}}}, {Pins: []Pin{{Cluster: "", Key: httpapi.PublicKey{1}}}}} {
		if _, err := bad.WithDefaults(); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

// FuzzOpen: every payload is either rejected or parsed, and a parsed record is within the limits (DSC-13, GO-08).
func FuzzOpen(f *testing.F) {
	good, key := payload(f)
	f.Add([]byte(good))
	f.Add([]byte(`{"v":1,"cluster":{"id":"a","name":"b"},"ips":["::1"],"x":[{"y":[null,true,-1.5e3,"\ud800"]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Open(Signed{b, ed25519.Sign(key, signedMessage(b))})
		if err != nil {
			return
		}
		if !json.Valid(b) {
			t.Fatalf("it was read and is not JSON: %q", b)
		}
		var w wireRecord
		if err := json.Unmarshal(b, &w); err == nil && w.Node == "" { // encoding/json ignores the case of names, the cursor does not
			t.Fatalf("it was read without a node: %q", b)
		}
		for k, v := range r.Labels {
			if !isLabelKey(k) || strings.ContainsAny(v, "<>\"'\x1b\n") {
				t.Fatalf("label %q=%q", k, v)
			}
		}
		switch {
		case len(r.Labels) > maxLabels:
			t.Fatalf("beyond the limits: len(r.Labels) = %v, want at most %v", len(r.Labels), maxLabels)
		case len(r.IPs) > maxAddresses:
			t.Fatalf("beyond the limits: len(r.IPs) = %v, want at most %v", len(r.IPs), maxAddresses)
		case len(b) > maxPayload:
			t.Fatalf("beyond the limits: len(b) = %v, want at most %v", len(b), maxPayload)
		case r.Generation > maxGeneration:
			t.Fatalf("beyond the limits: r.Generation = %v, want at most %v", r.Generation, maxGeneration)
		case r.Version > maxVersion:
			t.Fatalf("beyond the limits: r.Version = %v, want at most %v", r.Version, maxVersion)
		}
	})
}

// FuzzDecode: every message is either rejected or parsed, within 1 MiB (DSC-13, GO-05).
func FuzzDecode(f *testing.F) {
	good, key := payload(f)
	r, err := Open(Signed{[]byte(good), ed25519.Sign(key, signedMessage([]byte(good)))})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(message{Network: "default", Digest: []Claim{{Node: "nA", Order: Order{1, 2}, Heartbeat: 3}}, Records: []Signed{r.Signed}}.encode())
	f.Add([]byte(`{"v":1,"net":"default","d":[],"x":{"a":[1]},"r":[]}`))
	who := func([]byte) *member { return nil }
	f.Fuzz(func(t *testing.T, b []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m, err := decode(b, "default", nil, who)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Fatalf("%d bytes allocated for a message of %d", n, len(b))
		}
		if err != nil {
			return
		}
		if !json.Valid(b) {
			t.Fatalf("it was read and is not JSON: %q", b)
		}
		m.digest = true
		again, err := decode(m.encode(), "default", nil, who)
		switch {
		case err != nil:
			t.Fatalf("what was read cannot be: %v", err)
		case len(again.Digest) != len(m.Digest):
			t.Fatalf("what was read cannot be: len(again.Digest) = %v, want %v", len(again.Digest), len(m.Digest))
		case len(again.Records) != len(m.Records):
			t.Fatalf("what was read cannot be: len(again.Records) = %v, want %v", len(again.Records), len(m.Records))
		}
		for i, c := range again.Digest {
			if c != m.Digest[i] {
				t.Fatalf("entry %d is %v, and was %v", i, c, m.Digest[i])
			}
		}
	})
}

// FuzzBuried: a record of this node that a peer returns raises its generation only above that record, and never changes what it announces
// (GO-11).
func FuzzBuried(f *testing.F) {
	s := newSim(f, 1, 2, Settings{})
	node, by := s.nodes[0], s.nodes[1]
	s.start(node)
	f.Add(node.own.Signed.Payload, []byte{}, uint64(0))
	f.Add(node.own.Signed.Payload, by.sign(signedMessage(node.own.Signed.Payload)), uint64(1))
	f.Fuzz(func(t *testing.T, payload, signature []byte, listed uint64) {
		n := *node.engine // each input begins alike
		n.peers, n.stats, n.events = map[string]*peer{}, newStats(), nil
		genuine := len(signature) == 0
		if genuine {
			signature = node.sign(signedMessage(payload))
		}
		before := n.own
		m := message{Records: []Signed{{payload, signature}}, Digest: []Claim{{Node: n.self, Order: Order{listed % maxGeneration, 1}}}}
		n.mergeRecords(by.facts.Node, m, node.wall())
		if n.own == before {
			return
		}
		r, err := parse(m.Records[0])
		switch {
		case err != nil:
			t.Fatalf("a malformed record counts: %v", err)
		case !genuine && !r.isSignatureValid():
			t.Fatal("a record without a valid signature counts")
		case r.Key != node.facts.Key, r.Node != n.self:
			t.Fatalf("a record of %s by %s counts", r.Node, r.Key)
		case r.Generation < before.Generation, n.own.Generation != r.Generation+1:
			t.Fatalf("a record of generation %d raises %d to %d", r.Generation, before.Generation, n.own.Generation)
		}
		if want, got := before.Facts, n.own.Facts; !reflect.DeepEqual(want, got) {
			t.Fatalf("the facts (-want +got):\n%s", cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})))
		}
	})
}

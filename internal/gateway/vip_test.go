package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

func vipOwner(id string) VIPOwner {
	return VIPOwner{OperatorID: id, Instance: "instance-" + id, Resource: OwnerResource{Kind: "TailscaleService", Namespace: "shop", Name: "web", UID: "uid-" + id}}
}

var vipAddrs = []netip.Addr{netip.MustParseAddr("100.127.0.1"), netip.MustParseAddr("fd7a:115c:a1e0::7f00:1")}

// ownedVIP returns a service with these owners.
func ownedVIP(all ...VIPOwner) *tsapi.Service {
	var o VIPOwners
	for _, one := range all {
		o = o.With(one)
	}
	return &tsapi.Service{Name: "svc:web", Addrs: vipAddrs, Comment: "hello", Ports: []string{"tcp:80", "tcp:443"}, Tags: []string{"tag:web"},
		Annotations: map[string]string{OwnersAnnotation: o.String(), "somebody/else": "stays"}}
}

func changedVIP(s *tsapi.Service, change func(*tsapi.Service)) *tsapi.Service { change(s); return s }

var desiredVIP = DesiredVIP{Name: "svc:web", Ports: []string{"tcp:443", "tcp:80"}, Tags: []string{"tag:web"}, Comment: "hello"}

// GTW-25: the action of an operator on a service, for each kind of owner.
func TestReconcileVIP(t *testing.T) {
	a, b := vipOwner("tp-a"), vipOwner("tp-b")
	adopting, returning, other := desiredVIP, desiredVIP, desiredVIP
	adopting.Adopt, returning.Addrs, other.Ports = true, vipAddrs, []string{"tcp:8080"}
	twin := a
	twin.Instance = "elsewhere"
	recreated := a
	recreated.Resource.UID = "uid-anew"
	foreignCount := func(s *tsapi.Service) {
		s.Annotations[TailscaleOwnersAnnotation] = `{"ownerRefs":[{"operatorID":"ts"}]}`
	}
	for _, tt := range []struct {
		why    string
		have   *tsapi.Service
		wish   DesiredVIP
		me     VIPOwner
		deed   VIPAction
		reason VIPRefusal
		owners []string // owners of the written service
	}{
		{"there is none", nil, desiredVIP, a, VIPWrite, "", []string{"tp-a"}},
		{"the operator owns it", ownedVIP(a), desiredVIP, a, VIPUnchanged, "", nil},
		{"the operator and another operator own it", ownedVIP(a, b), desiredVIP, b, VIPUnchanged, "", nil},
		{"the operator owns it, with other ports", ownedVIP(a), other, a, VIPWrite, "", []string{"tp-a"}},
		{"the first owner changes the service for all", ownedVIP(a, b), other, a, VIPWrite, "", []string{"tp-a", "tp-b"}},
		{"the second may not", ownedVIP(a, b), other, b, VIPRefuse, VIPConflict, nil},
		{"another's, with the same ports", ownedVIP(a), desiredVIP, b, VIPWrite, "", []string{"tp-a", "tp-b"}},
		{"another's, with other ports", ownedVIP(a), other, b, VIPRefuse, VIPConflict, nil},
		{"adopting does not help", ownedVIP(a), DesiredVIP{Name: "svc:web", Ports: other.Ports, Adopt: true}, b, VIPRefuse, VIPConflict, nil},
		{"an object was created again", ownedVIP(a), desiredVIP, recreated, VIPWrite, "", []string{"tp-a"}},
		{"by hand", changedVIP(ownedVIP(), func(s *tsapi.Service) { delete(s.Annotations, OwnersAnnotation) }), desiredVIP, a, VIPRefuse, VIPNotOwned, nil},
		{"by hand, without any annotation", changedVIP(ownedVIP(), func(s *tsapi.Service) { s.Annotations = nil }), desiredVIP, a, VIPRefuse, VIPNotOwned, nil},
		{"invalid owners", ownedVIP(), desiredVIP, a, VIPRefuse, VIPNotOwned, nil},
		{"by hand, adopted", changedVIP(ownedVIP(), func(s *tsapi.Service) { s.Annotations = nil }), adopting, a, VIPWrite, "", []string{"tp-a"}},
		{"the operator's reference was lost", ownedVIP(), returning, a, VIPWrite, "", []string{"tp-a"}},
		{"the operator's reference was replaced by another one", ownedVIP(b), returning, a, VIPWrite, "", []string{"tp-b", "tp-a"}},
		{"another service with the name, created manually", changedVIP(ownedVIP(), func(s *tsapi.Service) { s.Addrs = s.Addrs[:1] }), returning, a, VIPRefuse, VIPNotOwned, nil},
		{"of Tailscale's operator", changedVIP(changedVIP(ownedVIP(), foreignCount), func(s *tsapi.Service) { delete(s.Annotations, OwnersAnnotation) }), desiredVIP, a, VIPRefuse, VIPNotOwned, nil},
		{"of Tailscale's operator, with an unknown format", changedVIP(ownedVIP(), func(s *tsapi.Service) { s.Annotations = map[string]string{TailscaleOwnersAnnotation: "?"} }), returning, a, VIPRefuse, VIPNotOwned, nil},
		{"of Tailscale's operator, adopted", changedVIP(changedVIP(ownedVIP(), foreignCount), func(s *tsapi.Service) { delete(s.Annotations, OwnersAnnotation) }), adopting, a, VIPWrite, "", []string{"tp-a"}},
		{"adopted before", changedVIP(ownedVIP(a), foreignCount), desiredVIP, a, VIPUnchanged, "", nil},
		{"unreadable", changedVIP(ownedVIP(), func(s *tsapi.Service) { s.Annotations[OwnersAnnotation] = "{" }), adopting, a, VIPRefuse, VIPNotOwned, nil},
		{"empty", changedVIP(ownedVIP(), func(s *tsapi.Service) { s.Annotations[OwnersAnnotation] = "" }), adopting, a, VIPRefuse, VIPNotOwned, nil},
		{"an owner without a name", changedVIP(ownedVIP(), func(s *tsapi.Service) { s.Annotations[OwnersAnnotation] = `{"ownerRefs":[{}]}` }), adopting, a, VIPRefuse, VIPNotOwned, nil},
		{"another operator has the same id", ownedVIP(twin), adopting, a, VIPRefuse, VIPDuplicate, nil},
		{"another operator has the same id, and both are owners", ownedVIP(a, twin), desiredVIP, a, VIPRefuse, VIPDuplicate, nil},
	} {
		t.Run(tt.why, func(t *testing.T) {
			before := ownersText(t, tt.have)
			d := ReconcileVIP(tt.have, tt.wish, tt.me)
			switch {
			case d.Action != tt.deed:
				t.Fatalf("d.Action = %q, want %q", d.Action, tt.deed)
			case d.Refusal != tt.reason:
				t.Fatalf("d.Refusal = %q, want %q", d.Refusal, tt.reason)
			case (d.Message != "") != (d.Action == VIPRefuse):
				t.Fatalf(`(d.Message != "") != (d.Action == VIPRefuse); %+v`, d)
			}
			if ownersText(t, tt.have) != before {
				t.Error("the input was changed")
			}
			if d.Action != VIPWrite {
				return
			}
			if got := ownerIDs(t, &d.Service); !slices.Equal(got, tt.owners) {
				t.Errorf("owners %v", got)
			}
			if tt.have == nil {
				return
			}
			if !slices.Equal(d.Service.Addrs, tt.have.Addrs) {
				t.Errorf("addresses %v", d.Service.Addrs)
			}
			for k, v := range tt.have.Annotations {
				if k != OwnersAnnotation && d.Service.Annotations[k] != v {
					t.Errorf("the annotation %s became %q", k, d.Service.Annotations[k])
				}
			}
			if again := ReconcileVIP(&d.Service, tt.wish, tt.me); again.Action != VIPUnchanged {
				t.Errorf("the written service is not correct: %+v", again)
			}
		})
	}
}

// Keep requests the old IPv4 address, and never an IPv6 address, which the API rejects.
func TestReconcileVIPAddress(t *testing.T) {
	w := desiredVIP
	w.Addrs = vipAddrs
	if got := ReconcileVIP(nil, w, vipOwner("tp-a")).Service.Addrs; !slices.Equal(got, vipAddrs[:1]) {
		t.Errorf("requires %v", got)
	}
	w.Addrs = vipAddrs[1:]
	if got := ReconcileVIP(nil, w, vipOwner("tp-a")).Service.Addrs; len(got) != 0 {
		t.Errorf("requires %v", got)
	}
}

func TestReleaseVIP(t *testing.T) {
	a, b := vipOwner("tp-a"), vipOwner("tp-b")
	twin := a
	twin.Instance = "elsewhere"
	for _, tt := range []struct {
		why  string
		have *tsapi.Service
		deed VIPAction
		left []string
	}{
		{"it does not exist", nil, VIPUnchanged, nil},
		{"the last", ownedVIP(a), VIPDelete, nil},
		{"not the last", ownedVIP(a, b), VIPWrite, []string{"tp-b"}},
		{"not owned", ownedVIP(b), VIPUnchanged, nil},
		{"created manually", changedVIP(ownedVIP(), func(s *tsapi.Service) { s.Annotations = nil }), VIPUnchanged, nil},
		{"unreadable", changedVIP(ownedVIP(a), func(s *tsapi.Service) { s.Annotations[OwnersAnnotation] += "x" }), VIPUnchanged, nil},
		{"Tailscale's operator stays", changedVIP(ownedVIP(a), func(s *tsapi.Service) { s.Annotations[TailscaleOwnersAnnotation] = "?" }), VIPWrite, nil},
		{"it had left", changedVIP(ownedVIP(a), func(s *tsapi.Service) { s.Annotations[TailscaleOwnersAnnotation] = `{"ownerRefs":[]}` }), VIPDelete, nil},
		{"another operator has the same id", ownedVIP(a, twin), VIPRefuse, nil},
	} {
		d := ReleaseVIP(tt.have, a)
		if d.Action != tt.deed {
			t.Errorf("%s: %+v", tt.why, d)
		}
		if d.Action == VIPWrite {
			switch got := ownerIDs(t, &d.Service); {
			case !slices.Equal(got, tt.left):
				t.Errorf("%s: leaves: got (-want +got):\n%s", tt.why, cmp.Diff(tt.left, got))
			case !slices.Equal(d.Service.Addrs, vipAddrs):
				t.Errorf("%s: leaves: d.Service.Addrs = %v, want %v", tt.why, d.Service.Addrs, vipAddrs)
			case d.Service.Annotations["somebody/else"] != "stays":
				t.Errorf("%s: leaves: got %q, want %q", tt.why, d.Service.Annotations["somebody/else"], "stays")
			}
			if again := ReleaseVIP(&d.Service, a); again.Action != VIPUnchanged {
				t.Errorf("%s: the written service is not correct: %+v", tt.why, again)
			}
		}
	}
}

// GTW-25, GW-10: several operators read and write in any interleaving. An operator that reconciles
// while something differs reaches its goal. All operators that keep the service are its owners,
// and after all have left, the service is gone. Additions by other parties stay.
func TestSharedVIP(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 7))
		var world *tsapi.Service
		foreign := seed%3 == 0
		if foreign {
			world = changedVIP(ownedVIP(vipOwner("tp-x")), func(s *tsapi.Service) { s.Annotations["more"] = "stays" })
		}
		type operator struct {
			me    VIPOwner
			keeps bool
			held  []netip.Addr
			d     *VIPDecision // decided and not executed yet
			sure  bool         // two reads have confirmed the deletion
		}
		var all []*operator
		for i := range 2 + r.IntN(3) {
			all = append(all, &operator{me: vipOwner(fmt.Sprint("tp-", i)), keeps: true})
		}
		step := func(o *operator) (rests bool) {
			if o.d == nil {
				w := desiredVIP
				w.Addrs = o.held
				d := ReconcileVIP(world, w, o.me)
				if !o.keeps {
					d = ReleaseVIP(world, o.me)
				}
				if d.Action == VIPRefuse {
					t.Fatalf("seed %d: %+v", seed, d)
				}
				if d.Action == VIPUnchanged {
					if o.sure = false; o.keeps {
						o.held = world.Addrs
					}
					return true
				}
				if d.Action == VIPDelete && !o.sure {
					o.sure = true
					return false
				}
				o.d = &d
				return false
			}
			d := *o.d
			o.d, o.sure = nil, false
			switch {
			case d.Action == VIPDelete:
				world = nil
			case world == nil && len(d.Service.Addrs) > 1, world != nil && !slices.Equal(d.Service.Addrs, world.Addrs):
				// The API rejects the write: a new service cannot have both addresses, and an
				// existing one must keep its addresses.
			default:
				if d.Service.Addrs = vipAddrs; world != nil {
					d.Service.Addrs = world.Addrs
				}
				world = new(d.Service)
			}
			return false
		}
		settle := func() {
			for quiet, n := 0, 0; quiet < 20*len(all); n++ {
				if n > 100_000 {
					t.Fatalf("seed %d: no end: %+v", seed, world)
				}
				if step(all[r.IntN(len(all))]) {
					quiet++
				} else {
					quiet = 0
				}
			}
		}
		settle()
		for _, o := range all {
			if !slices.Contains(ownerIDs(t, world), o.me.OperatorID) {
				t.Fatalf("seed %d: %s is not among %v", seed, o.me.OperatorID, ownerIDs(t, world))
			}
		}
		all[0].keeps = false
		settle()
		if slices.Contains(ownerIDs(t, world), "tp-0") || len(ownerIDs(t, world)) != len(all)-1+map[bool]int{true: 1}[foreign] {
			t.Fatalf("seed %d: one left, but the owners are %v", seed, ownerIDs(t, world))
		}
		for _, o := range all {
			o.keeps = false
		}
		settle()
		if foreign != (world != nil) || foreign && (!slices.Equal(ownerIDs(t, world), []string{"tp-x"}) || world.Annotations["more"] != "stays") {
			t.Fatalf("seed %d: all left, but the service exists: %+v", seed, world)
		}
	}
}

// All additions of other parties to the annotation stay, including unknown fields.
func TestOwnersPreserved(t *testing.T) {
	const written = `{ "ownerRefs" : [{"operatorID":"of tomorrow","resource":{"kind":"X","more":[1.50]},"since":"1"}], "version": 2 }`
	o, err := ParseVIPOwners(written)
	if err != nil {
		t.Fatal(err)
	}
	got := o.With(vipOwner("tp-a")).String()
	if !strings.Contains(got, `{"operatorID":"of tomorrow","resource":{"kind":"X","more":[1.50]},"since":"1"}`) || !strings.Contains(got, `"version":2`) {
		t.Error(got)
	}
	have := changedVIP(ownedVIP(), func(s *tsapi.Service) {
		s.Annotations[OwnersAnnotation] = " " + ownedVIP(vipOwner("tp-a")).Annotations[OwnersAnnotation]
	})
	if d := ReconcileVIP(have, desiredVIP, vipOwner("tp-a")); d.Action != VIPUnchanged {
		t.Errorf("another format is overwritten: %+v", d)
	}
}

func TestOperatorID(t *testing.T) {
	a := OperatorID("uid", "ns", "release")
	switch {
	case len(a) != 19:
		t.Errorf("len(a) = %v, want 19", len(a))
	case !strings.HasPrefix(a, "tp-"):
		t.Errorf("a = %q does not start with %q", a, "tp-")
	case a != OperatorID("uid", "ns", "release"):
		t.Errorf(`a = %q, want OperatorID("uid", "ns", "release")`, a)
	}
	for _, b := range []string{OperatorID("uid2", "ns", "release"), OperatorID("uid", "nsrelease", ""), OperatorID("uid", "ns", "release2")} {
		if a == b {
			t.Error("two operators have one id")
		}
	}
}

// FuzzOwners: for any text, either the annotation is rejected, or all its owners remain when this
// operator joins and leaves.
func FuzzOwners(f *testing.F) {
	f.Add(`{"ownerRefs":[{"operatorID":"tp-b","instance":"i","resource":{"kind":"TailscaleService","namespace":"n","name":"x","uid":"u"}}]}`)
	f.Add(`{"ownerRefs":[{"OPERATORID":"<","x":1e400}],"ownerrefs":[],"":null}`)
	f.Add(`{"ownerRefs":null}`)
	f.Add(`{"ownerRefs":[{"operatorID":"tp-a","instance":"instance-tp-a","resource":{"kind":"TailscaleService","namespace":"shop","name":"web"}}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		me := vipOwner("tp-a")
		o, err := ParseVIPOwners(text)
		if err != nil || text == "" {
			return
		}
		again, err := ParseVIPOwners(o.String())
		if err != nil || again.String() != o.String() {
			t.Fatalf("%q is written as %q: %v", text, o, err)
		}
		joined, err := ParseVIPOwners(o.With(me).String())
		if err != nil || joined.index(me) < 0 {
			t.Fatalf("%q: not among %s: %v", text, joined, err)
		}
		remaining := joined.Without(me)
		if remaining.index(me) >= 0 || remaining.String() != o.Without(me).String() {
			t.Fatalf("%q: the rest is %s, not %s", text, remaining, o.Without(me))
		}
		have := ownedVIP()
		have.Annotations[OwnersAnnotation] = text
		if d := ReleaseVIP(have, me); d.Action == VIPDelete && o.Without(me).Len() > 0 {
			t.Fatalf("%q: others are deleted", text)
		}
		if d := ReconcileVIP(have, desiredVIP, me); d.Action == VIPWrite && !o.duplicated(me) {
			after, err := ParseVIPOwners(d.Service.Annotations[OwnersAnnotation])
			switch {
			case err != nil:
				t.Fatalf("%v; text = %q; %q", err, text, d.Service.Annotations[OwnersAnnotation])
			case after.index(me) < 0:
				t.Fatalf("after.index(me) < 0; text = %q, %q", text, d.Service.Annotations[OwnersAnnotation])
			case after.Without(me).String() != o.Without(me).String():
				t.Fatalf("after.Without(me).String() != o.Without(me).String(); text = %q, %q",
					text, d.Service.Annotations[OwnersAnnotation])
			}
		}
	})
}

func ownerIDs(t *testing.T, s *tsapi.Service) (out []string) {
	t.Helper()
	if s == nil {
		t.Fatal("there is no service")
	}
	o, err := ParseVIPOwners(s.Annotations[OwnersAnnotation])
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range o.list {
		out = append(out, e.OperatorID)
	}
	return out
}

func ownersText(t *testing.T, s *tsapi.Service) string {
	t.Helper()
	if s == nil {
		return ""
	}
	b, err := json.Marshal(struct {
		tsapi.Service
		Sorted []string
	}{*s, slices.Sorted(maps.Keys(s.Annotations))})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

package vip

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func owner(id string) Owner {
	return Owner{OperatorID: id, Instance: "instance-" + id, Resource: Resource{Kind: "TailscaleService", Namespace: "shop", Name: "web", UID: "uid-" + id}}
}

var addrs = []netip.Addr{netip.MustParseAddr("100.127.0.1"), netip.MustParseAddr("fd7a:115c:a1e0::7f00:1")}

// owned returns a service with these owners.
func owned(all ...Owner) *Service {
	var o Owners
	for _, one := range all {
		o = o.With(one)
	}
	return &Service{Name: "svc:web", Addrs: addrs, Comment: "hello", Ports: []string{"tcp:80", "tcp:443"}, Tags: []string{"tag:web"},
		Annotations: map[string]string{Annotation: o.String(), "somebody/else": "stays"}}
}

func with(s *Service, change func(*Service)) *Service { change(s); return s }

var wish = Wish{Name: "svc:web", Ports: []string{"tcp:443", "tcp:80"}, Tags: []string{"tag:web"}, Comment: "hello"}

// GTW-25: the action of an operator on a service, for each kind of owner.
func TestKeep(t *testing.T) {
	a, b := owner("tp-a"), owner("tp-b")
	adopting, returning, other := wish, wish, wish
	adopting.Adopt, returning.Addrs, other.Ports = true, addrs, []string{"tcp:8080"}
	twin := a
	twin.Instance = "elsewhere"
	anew := a
	anew.Resource.UID = "uid-anew"
	theirs := func(s *Service) { s.Annotations[TailscaleAnnotation] = `{"ownerRefs":[{"operatorID":"ts"}]}` }
	for _, tt := range []struct {
		why    string
		have   *Service
		wish   Wish
		me     Owner
		deed   Deed
		reason Why
		owners []string // owners of the written service
	}{
		{"there is none", nil, wish, a, Write, "", []string{"tp-a"}},
		{"it is ours", owned(a), wish, a, Rest, "", nil},
		{"it is ours, and another's too", owned(a, b), wish, b, Rest, "", nil},
		{"it is ours, with other ports", owned(a), other, a, Write, "", []string{"tp-a"}},
		{"the first changes what all have", owned(a, b), other, a, Write, "", []string{"tp-a", "tp-b"}},
		{"the second may not", owned(a, b), other, b, Refuse, Conflict, nil},
		{"another's, with the same ports", owned(a), wish, b, Write, "", []string{"tp-a", "tp-b"}},
		{"another's, with other ports", owned(a), other, b, Refuse, Conflict, nil},
		{"and adopting does not help", owned(a), Wish{Name: "svc:web", Ports: other.Ports, Adopt: true}, b, Refuse, Conflict, nil},
		{"an object was made anew", owned(a), wish, anew, Write, "", []string{"tp-a"}},
		{"by hand", with(owned(), func(s *Service) { delete(s.Annotations, Annotation) }), wish, a, Refuse, NotOwned, nil},
		{"by hand, without any annotation", with(owned(), func(s *Service) { s.Annotations = nil }), wish, a, Refuse, NotOwned, nil},
		{"owners who are none", owned(), wish, a, Refuse, NotOwned, nil},
		{"by hand, adopted", with(owned(), func(s *Service) { s.Annotations = nil }), adopting, a, Write, "", []string{"tp-a"}},
		{"our name was lost", owned(), returning, a, Write, "", []string{"tp-a"}},
		{"our name was lost to another", owned(b), returning, a, Write, "", []string{"tp-b", "tp-a"}},
		{"another one of the name, made by hand", with(owned(), func(s *Service) { s.Addrs = s.Addrs[:1] }), returning, a, Refuse, NotOwned, nil},
		{"of Tailscale's operator", with(with(owned(), theirs), func(s *Service) { delete(s.Annotations, Annotation) }), wish, a, Refuse, NotOwned, nil},
		{"of Tailscale's operator, which we do not understand", with(owned(), func(s *Service) { s.Annotations = map[string]string{TailscaleAnnotation: "?"} }), returning, a, Refuse, NotOwned, nil},
		{"of Tailscale's operator, adopted", with(with(owned(), theirs), func(s *Service) { delete(s.Annotations, Annotation) }), adopting, a, Write, "", []string{"tp-a"}},
		{"adopted before", with(owned(a), theirs), wish, a, Rest, "", nil},
		{"unreadable", with(owned(), func(s *Service) { s.Annotations[Annotation] = "{" }), adopting, a, Refuse, NotOwned, nil},
		{"empty", with(owned(), func(s *Service) { s.Annotations[Annotation] = "" }), adopting, a, Refuse, NotOwned, nil},
		{"an owner without a name", with(owned(), func(s *Service) { s.Annotations[Annotation] = `{"ownerRefs":[{}]}` }), adopting, a, Refuse, NotOwned, nil},
		{"another operator has our id", owned(twin), adopting, a, Refuse, Duplicate, nil},
		{"another operator has our id, and we are there", owned(a, twin), wish, a, Refuse, Duplicate, nil},
	} {
		t.Run(tt.why, func(t *testing.T) {
			before := text(t, tt.have)
			d := Keep(tt.have, tt.wish, tt.me)
			if d.Deed != tt.deed || d.Why != tt.reason || (d.Message != "") != (d.Deed == Refuse) {
				t.Fatalf("%+v", d)
			}
			if text(t, tt.have) != before {
				t.Error("what was read was changed")
			}
			if d.Deed != Write {
				return
			}
			if got := ids(t, &d.Service); !slices.Equal(got, tt.owners) {
				t.Errorf("owners %v", got)
			}
			if tt.have == nil {
				return
			}
			if !slices.Equal(d.Service.Addrs, tt.have.Addrs) {
				t.Errorf("addresses %v", d.Service.Addrs)
			}
			for k, v := range tt.have.Annotations {
				if k != Annotation && d.Service.Annotations[k] != v {
					t.Errorf("the annotation %s became %q", k, d.Service.Annotations[k])
				}
			}
			if again := Keep(&d.Service, tt.wish, tt.me); again.Deed != Rest {
				t.Errorf("written, it is not right: %+v", again)
			}
		})
	}
}

// Keep requests the old IPv4 address, and never an IPv6 address, which the API rejects.
func TestKeepAddress(t *testing.T) {
	w := wish
	w.Addrs = addrs
	if got := Keep(nil, w, owner("tp-a")).Service.Addrs; !slices.Equal(got, addrs[:1]) {
		t.Errorf("asks for %v", got)
	}
	w.Addrs = addrs[1:]
	if got := Keep(nil, w, owner("tp-a")).Service.Addrs; len(got) != 0 {
		t.Errorf("asks for %v", got)
	}
}

func TestLeave(t *testing.T) {
	a, b := owner("tp-a"), owner("tp-b")
	twin := a
	twin.Instance = "elsewhere"
	for _, tt := range []struct {
		why  string
		have *Service
		deed Deed
		left []string
	}{
		{"it is gone", nil, Rest, nil},
		{"the last", owned(a), Delete, nil},
		{"not the last", owned(a, b), Write, []string{"tp-b"}},
		{"not ours", owned(b), Rest, nil},
		{"made by hand", with(owned(), func(s *Service) { s.Annotations = nil }), Rest, nil},
		{"unreadable", with(owned(a), func(s *Service) { s.Annotations[Annotation] += "x" }), Rest, nil},
		{"Tailscale's operator stays", with(owned(a), func(s *Service) { s.Annotations[TailscaleAnnotation] = "?" }), Write, nil},
		{"it had left", with(owned(a), func(s *Service) { s.Annotations[TailscaleAnnotation] = `{"ownerRefs":[]}` }), Delete, nil},
		{"another operator has our id", owned(a, twin), Refuse, nil},
	} {
		d := Leave(tt.have, a)
		if d.Deed != tt.deed {
			t.Errorf("%s: %+v", tt.why, d)
		}
		if d.Deed == Write {
			if got := ids(t, &d.Service); !slices.Equal(got, tt.left) || !slices.Equal(d.Service.Addrs, addrs) || d.Service.Annotations["somebody/else"] != "stays" {
				t.Errorf("%s: leaves %+v", tt.why, d.Service)
			}
			if again := Leave(&d.Service, a); again.Deed != Rest {
				t.Errorf("%s: written, it is not right: %+v", tt.why, again)
			}
		}
	}
}

// GTW-25, GW-10: several operators read and write in any interleaving. An operator that reconciles
// while something differs reaches its goal. All operators that keep the service are its owners,
// and after all have left, the service is gone. Additions by other parties stay.
func TestShared(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 7))
		var world *Service
		foreign := seed%3 == 0
		if foreign {
			world = with(owned(owner("tp-x")), func(s *Service) { s.Annotations["more"] = "stays" })
		}
		type operator struct {
			me    Owner
			keeps bool
			held  []netip.Addr
			d     *Decision // decided and not executed yet
			sure  bool      // two reads have confirmed the deletion
		}
		var all []*operator
		for i := range 2 + r.IntN(3) {
			all = append(all, &operator{me: owner(fmt.Sprint("tp-", i)), keeps: true})
		}
		step := func(o *operator) (rests bool) {
			if o.d == nil {
				w := wish
				w.Addrs = o.held
				d := Keep(world, w, o.me)
				if !o.keeps {
					d = Leave(world, o.me)
				}
				if d.Deed == Refuse {
					t.Fatalf("seed %d: %+v", seed, d)
				}
				if d.Deed == Rest {
					if o.sure = false; o.keeps {
						o.held = world.Addrs
					}
					return true
				}
				if d.Deed == Delete && !o.sure {
					o.sure = true
					return false
				}
				o.d = &d
				return false
			}
			d := *o.d
			o.d, o.sure = nil, false
			switch {
			case d.Deed == Delete:
				world = nil
			case world == nil && len(d.Service.Addrs) > 1, world != nil && !slices.Equal(d.Service.Addrs, world.Addrs):
				// The API rejects the write: a new service cannot have both addresses, and an
				// existing one must keep its addresses.
			default:
				if d.Service.Addrs = addrs; world != nil {
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
			if !slices.Contains(ids(t, world), o.me.OperatorID) {
				t.Fatalf("seed %d: %s is not among %v", seed, o.me.OperatorID, ids(t, world))
			}
		}
		all[0].keeps = false
		settle()
		if slices.Contains(ids(t, world), "tp-0") || len(ids(t, world)) != len(all)-1+map[bool]int{true: 1}[foreign] {
			t.Fatalf("seed %d: one left, and there are %v", seed, ids(t, world))
		}
		for _, o := range all {
			o.keeps = false
		}
		settle()
		if foreign != (world != nil) || foreign && (!slices.Equal(ids(t, world), []string{"tp-x"}) || world.Annotations["more"] != "stays") {
			t.Fatalf("seed %d: all left, and there is %+v", seed, world)
		}
	}
}

// All additions of other parties to the annotation stay, including unknown fields.
func TestOwnersKeep(t *testing.T) {
	const written = `{ "ownerRefs" : [{"operatorID":"of tomorrow","resource":{"kind":"X","more":[1.50]},"since":"1"}], "version": 2 }`
	o, err := ParseOwners(written)
	if err != nil {
		t.Fatal(err)
	}
	got := o.With(owner("tp-a")).String()
	if !strings.Contains(got, `{"operatorID":"of tomorrow","resource":{"kind":"X","more":[1.50]},"since":"1"}`) || !strings.Contains(got, `"version":2`) {
		t.Error(got)
	}
	have := with(owned(), func(s *Service) { s.Annotations[Annotation] = " " + owned(owner("tp-a")).Annotations[Annotation] })
	if d := Keep(have, wish, owner("tp-a")); d.Deed != Rest {
		t.Errorf("another spelling is written over: %+v", d)
	}
}

func TestOperatorID(t *testing.T) {
	a := OperatorID("uid", "ns", "release")
	if len(a) != 19 || !strings.HasPrefix(a, "tp-") || a != OperatorID("uid", "ns", "release") {
		t.Error(a)
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
		me := owner("tp-a")
		o, err := ParseOwners(text)
		if err != nil || text == "" {
			return
		}
		again, err := ParseOwners(o.String())
		if err != nil || again.String() != o.String() {
			t.Fatalf("%q is written as %q: %v", text, o, err)
		}
		joined, err := ParseOwners(o.With(me).String())
		if err != nil || joined.index(me) < 0 {
			t.Fatalf("%q: not among %s: %v", text, joined, err)
		}
		left := joined.Without(me)
		if left.index(me) >= 0 || left.String() != o.Without(me).String() {
			t.Fatalf("%q: what is left is %s, not %s", text, left, o.Without(me))
		}
		have := owned()
		have.Annotations[Annotation] = text
		if d := Leave(have, me); d.Deed == Delete && o.Without(me).Len() > 0 {
			t.Fatalf("%q: others are deleted", text)
		}
		if d := Keep(have, wish, me); d.Deed == Write && !o.doubled(me) {
			after, err := ParseOwners(d.Service.Annotations[Annotation])
			if err != nil || after.index(me) < 0 || after.Without(me).String() != o.Without(me).String() {
				t.Fatalf("%q: written as %q", text, d.Service.Annotations[Annotation])
			}
		}
	})
}

func ids(t *testing.T, s *Service) (out []string) {
	t.Helper()
	if s == nil {
		t.Fatal("there is no service")
	}
	o, err := ParseOwners(s.Annotations[Annotation])
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range o.list {
		out = append(out, e.OperatorID)
	}
	return out
}

func text(t *testing.T, s *Service) string {
	t.Helper()
	if s == nil {
		return ""
	}
	b, err := json.Marshal(struct {
		Service
		Sorted []string
	}{*s, slices.Sorted(maps.Keys(s.Annotations))})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

package position

import (
	"encoding/base64"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// place returns the example of the documentation: members east and west have slots 1 and 2; here has slot 0
// and is not a member.
func place() Place {
	return Place{Epoch: 7, Width: 3, Slots: []int{1, 2}, Hash: "0123456789abcdef", Ring: new(Ring), Now: time.Time{}.Add(1 + ripe)}
}

func vec(epoch uint64, fields ...uint64) string { return Vector{epoch, fields}.String() }

func TestVectorOfTheExample(t *testing.T) {
	const want = "10000000007000000000000000000000000000000000004821300000000000000000901"
	if got := vec(7, 0, 48213, 901); got != want {
		t.Errorf("east at 48213 and west at 901 is %s", got)
	}
	rv, bad := ParseRV(want)
	if bad != nil || rv.Vector == nil || !rv.Vector.Equal(Vector{7, []uint64{0, 48213, 901}}) {
		t.Errorf("parsed as %+v, %v", rv, bad)
	}
}

func TestParseRV(t *testing.T) {
	for s, want := range map[string]string{
		"":                                  "nothing",
		"0":                                 "nothing",
		"901":                               "plain",
		"18446744073709551615":              "plain",
		"18446744073709551616":              "400",
		"00":                                "400",
		"007":                               "400",
		"-1":                                "400",
		"+1":                                "400",
		"1e3":                               "400",
		"abc":                               "400",
		"١":                                 "400",
		strings.Repeat("1", 21):             "400",
		strings.Repeat("1", 30):             "400",
		"2" + vec(7, 0, 1)[1:]:              "400",
		vec(7, 0, 1) + "0":                  "400",
		vec(0, 1):                           "400",
		vec(7, make([]uint64, 32)...):       "vector",
		vec(7, make([]uint64, 33)...):       "400",
		"1000000000799999999999999999999":   "400",
		vec(MaxEpoch, 1<<64-1):              "vector",
		vec(1, 0):                           "vector",
		" " + vec(7, 1):                     "400",
		vec(7, 0, 48213, 901):               "vector",
		"1000000000700000000000000000001\n": "400",
	} {
		rv, bad := ParseRV(s)
		got := "nothing"
		switch {
		case bad != nil:
			got = fmt.Sprint(bad.Code)
		case rv.Vector != nil:
			got = "vector"
		case rv.Plain > 0:
			got = "plain"
		}
		if got != want {
			t.Errorf("%q is %s, not %s", s, got, want)
		}
	}
}

// TestVectorGrows checks three properties. Decoding an encoded vector returns it. A vector grows when a field
// grows, both as a number and in the comparison of Kubernetes. A wider vector of the same configuration is
// greater.
func TestVectorGrows(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	number := func(v Vector) *big.Int {
		n, ok := new(big.Int).SetString(v.String(), 10)
		if !ok {
			t.Fatalf("%s is no number", v)
		}
		return n
	}
	for range 2000 {
		v := NewVector(1+r.Uint64N(MaxEpoch), 1+r.IntN(MaxSlots))
		for i := range v.Fields {
			v.Fields[i] = r.Uint64() >> r.IntN(64)
		}
		rv, bad := ParseRV(v.String())
		if bad != nil || !rv.Vector.Equal(v) {
			t.Fatalf("%s came back as %+v, %v", v, rv, bad)
		}
		if len(v.String()) != 11+20*len(v.Fields) || len(v.String()) > 651 {
			t.Fatalf("%d digits for %d slots", len(v.String()), len(v.Fields))
		}
		grown := v.Clone()
		i := r.IntN(len(v.Fields))
		if v.Fields[i] == 1<<64-1 {
			continue
		}
		grown.Raise(i, v.Fields[i]+1+r.Uint64N(1<<64-1-v.Fields[i]))
		if number(grown).Cmp(number(v)) <= 0 {
			t.Fatalf("%s grew to %s", v, grown)
		}
		if c, err := resourceversion.CompareResourceVersion(v.String(), grown.String()); err != nil || c != -1 {
			t.Fatalf("Kubernetes compares %s and %s as %d, %v", v, grown, c, err)
		}
		wide := v.Clone()
		wide.widen(len(v.Fields) + 1)
		if number(wide).Cmp(number(v)) <= 0 || !wide.Equal(v) {
			t.Fatalf("%s is not less than %s", v, wide)
		}
		shrunk := v.Clone()
		shrunk.Raise(i, 0)
		if !shrunk.Equal(v) {
			t.Fatal("a field went down")
		}
	}
}

// ADP-10: TestPlan covers the table "request on a merged collection", row by row.
func TestPlan(t *testing.T) {
	const list, watch = false, true
	ours := vec(7, 0, 48213, 901)
	half := vec(7, 0, 48213, 0)
	for _, row := range []struct {
		why   string
		watch bool
		query string
		want  string // the requests to east and west, or a code
	}{
		// RV absent, "" or "0" is the same.
		{"a list of the newest", list, "", "|"},
		{"a list of anything", list, "resourceVersion=0", "resourceVersion=0|resourceVersion=0"},
		{"said twice", list, "resourceVersion=0&resourceVersionMatch=NotOlderThan", "resourceVersion=0&resourceVersionMatch=NotOlderThan|same"},
		{"an empty one", list, "resourceVersion=", "|"},
		{"with a limit", list, "limit=5", "limit=5|limit=5"},
		{"a watch-list", watch, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "resourceVersionMatch=NotOlderThan&sendInitialEvents=true|same"},
		{"a watch-list of anything", watch, "resourceVersion=0&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", "resourceVersion=0&resourceVersionMatch=NotOlderThan&sendInitialEvents=true|same"},
		{"a watch from now on", watch, "sendInitialEvents=false&resourceVersionMatch=NotOlderThan", "resourceVersionMatch=NotOlderThan&sendInitialEvents=false|same"},
		// A plain watch: every field counts as zero.
		{"a plain watch", watch, "", "resourceVersionMatch=NotOlderThan&sendInitialEvents=true|same"},
		{"a plain watch of anything", watch, "resourceVersion=0", "resourceVersion=0&resourceVersionMatch=NotOlderThan&sendInitialEvents=true|same"},
		// V, not exact.
		{"a list not older", list, "resourceVersion=" + ours, "resourceVersion=48213&resourceVersionMatch=NotOlderThan|resourceVersion=901&resourceVersionMatch=NotOlderThan"},
		{"a list not older, said", list, "resourceVersionMatch=NotOlderThan&resourceVersion=" + ours, "resourceVersion=48213&resourceVersionMatch=NotOlderThan|resourceVersion=901&resourceVersionMatch=NotOlderThan"},
		{"of a member that is not known", list, "resourceVersion=" + half, "resourceVersion=48213&resourceVersionMatch=NotOlderThan|"},
		{"a watch-list not older", watch, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=" + half,
			"resourceVersion=48213&resourceVersionMatch=NotOlderThan&sendInitialEvents=true|resourceVersionMatch=NotOlderThan&sendInitialEvents=true"},
		{"not older with a limit", list, "limit=5&resourceVersionMatch=NotOlderThan&resourceVersion=" + half, "limit=5&resourceVersion=48213&resourceVersionMatch=NotOlderThan|limit=5"},
		// V, exact.
		{"exactly", list, "resourceVersionMatch=Exact&resourceVersion=" + ours, "resourceVersion=48213&resourceVersionMatch=Exact|resourceVersion=901&resourceVersionMatch=Exact"},
		{"a limit is exact", list, "limit=5&resourceVersion=" + ours, "limit=5&resourceVersion=48213&resourceVersionMatch=Exact|limit=5&resourceVersion=901&resourceVersionMatch=Exact"},
		{"exactly, of a member that is not known", list, "resourceVersionMatch=Exact&resourceVersion=" + half, "410"},
		{"a limit, of a member that is not known", list, "limit=5&resourceVersion=" + half, "410"},
		// A position without meaning here, not exact: the most recent state.
		{"a list from a plain number", list, "resourceVersion=901", "|"},
		{"a list of an older epoch", list, "resourceVersion=" + vec(6, 0, 48213, 901), "|"},
		{"a list with a cluster that is no member", list, "resourceVersionMatch=NotOlderThan&resourceVersion=" + vec(7, 5, 48213, 901), "|"},
		{"with a cluster beyond ours", list, "resourceVersion=" + vec(7, 0, 48213, 901, 4), "|"},
		{"a watch-list from a plain number", watch, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=901", "resourceVersionMatch=NotOlderThan&sendInitialEvents=true|same"},
		{"a watch-list of an older epoch", watch, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=" + vec(6, 0, 1, 1), "resourceVersionMatch=NotOlderThan&sendInitialEvents=true|same"},
		// The same, exact.
		{"exactly a plain number", list, "resourceVersionMatch=Exact&resourceVersion=901", "410"},
		{"a limit and a plain number", list, "limit=5&resourceVersion=901", "410"},
		{"exactly an older epoch", list, "resourceVersionMatch=Exact&resourceVersion=" + vec(6, 0, 48213, 901), "410"},
		{"exactly with a cluster that is no member", list, "resourceVersionMatch=Exact&resourceVersion=" + vec(7, 5, 48213, 901), "410"},
		// A watch with V.
		{"a watch", watch, "resourceVersion=" + ours, "resourceVersion=48213|resourceVersion=901"},
		{"a watch with bookmarks and an end of its own", watch, "allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=" + ours, "resourceVersion=48213|resourceVersion=901"},
		{"a member joins", watch, "resourceVersion=" + half, "resourceVersion=48213|resourceVersionMatch=NotOlderThan&sendInitialEvents=true"},
		{"a narrower one, of before a cluster was added", watch, "resourceVersion=" + vec(7, 0, 48213), "resourceVersion=48213|resourceVersionMatch=NotOlderThan&sendInitialEvents=true"},
		{"a wider one that says nothing more", watch, "resourceVersion=" + vec(7, 0, 48213, 901, 0), "resourceVersion=48213|resourceVersion=901"},
		{"a watch from now on with V", watch, "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=" + ours, "resourceVersion=48213|resourceVersion=901"},
		{"a watch of an older epoch", watch, "resourceVersion=" + vec(6, 0, 48213, 901), "410"},
		{"a watch with a cluster that is no member", watch, "resourceVersion=" + vec(7, 5, 48213, 901), "410"},
		{"a watch from a plain number", watch, "resourceVersion=12", "410"},
		{"a watch from a number in the ring", watch, "resourceVersion=48217", "resourceVersion=48217|resourceVersion=900"},
		// A newer epoch.
		{"a list of a newer document", list, "resourceVersion=" + vec(8, 0, 1, 1), "504"},
		{"exactly", list, "resourceVersionMatch=Exact&resourceVersion=" + vec(8, 0, 1, 1), "504"},
		{"a watch", watch, "resourceVersion=" + vec(8, 0, 1, 1), "504"},
		{"a watch-list", watch, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=" + vec(8, 0, 1, 1), "504"},
		// Combinations that the API refuses.
		{"sendInitialEvents on a list", list, "sendInitialEvents=true&resourceVersion=" + ours, "first: resourceVersion=48213&sendInitialEvents=true"},
		{"a match without a version", list, "resourceVersionMatch=Exact", "first: resourceVersionMatch=Exact"},
		{"a match with continue", list, "resourceVersionMatch=Exact&continue=abc&resourceVersion=" + ours, "first: continue=abc&resourceVersion=48213&resourceVersionMatch=Exact"},
		{"exactly 0", list, "resourceVersionMatch=Exact&resourceVersion=0", "first: resourceVersion=0&resourceVersionMatch=Exact"},
		{"an unknown match", list, "resourceVersionMatch=Newer&resourceVersion=" + half, "first: resourceVersion=48213&resourceVersionMatch=Newer"},
		{"a watch-list without a match", watch, "sendInitialEvents=true", "first: sendInitialEvents=true"},
		{"a watch-list that is exact", watch, "sendInitialEvents=true&resourceVersionMatch=Exact", "first: resourceVersionMatch=Exact&sendInitialEvents=true"},
		{"a watch with a match", watch, "resourceVersionMatch=NotOlderThan&resourceVersion=" + ours, "first: resourceVersion=48213&resourceVersionMatch=NotOlderThan"},
		// Invalid positions.
		{"a list", list, "resourceVersion=abc", "400"},
		{"a watch", watch, "resourceVersion=abc", "400"},
		{"a token", list, "continue=abc", "400"},
	} {
		t.Run(row.why, func(t *testing.T) {
			p := place()
			at := Vector{7, []uint64{0, 48217, 900}}
			move(p.Ring, 2, 900, 60000, at) // west did not use 48217
			event(p.Ring, 1, 48217, at)
			v, err := url.ParseQuery(row.query)
			if err != nil {
				t.Fatal(err)
			}
			plan, refusal := p.Plan(ParseQuery(v, row.watch))
			got := ""
			if refusal != nil {
				got = fmt.Sprint(refusal.Code)
				if refusal.Code == 504 && (refusal.Cause != "ResourceVersionTooLarge" || refusal.RetryAfter != 1) {
					t.Errorf("a 504 that clients do not know: %+v", refusal)
				}
			} else {
				var asks []string
				for i, a := range plan.Asks {
					v, _ := url.ParseQuery(row.query)
					a.Set(v)
					if a.Watch != row.watch || a.Watch && (v.Get("allowWatchBookmarks") != "true" || v.Get("watch") != "true") || v.Has("timeoutSeconds") {
						t.Errorf("member %d is asked %s", i, v.Encode())
					}
					v.Del("watch")
					v.Del("allowWatchBookmarks")
					asks = append(asks, v.Encode())
				}
				if !plan.Verbatim && (len(plan.Asks) != 2 || plan.Asks[0].Slot != 1 || plan.Asks[1].Slot != 2) {
					t.Fatalf("asked %+v", plan.Asks)
				}
				got = strings.Join(asks, "|")
				if plan.Verbatim {
					got = "first: " + got
				} else if strings.HasSuffix(row.want, "|same") {
					row.want = strings.TrimSuffix(row.want, "same") + strings.TrimSuffix(row.want, "|same")
				}
			}
			if got != row.want {
				t.Errorf("%s\n is %s\n not %s", row.query, got, row.want)
			}
		})
	}
}

// TestSingle checks that vectors and merged tokens never reach a cluster that alone holds a collection.
func TestSingle(t *testing.T) {
	ours := vec(7, 0, 48213, 901)
	token := Token{Vector: Vector{7, []uint64{0, 1, 2}}, Slot: 1}.Encode(place().Hash)
	for _, row := range []struct {
		watch       bool
		query, want string
	}{
		{false, "resourceVersion=12", "as it came"},
		{false, "continue=abc", "as it came"},
		{true, "resourceVersion=nonsense", "as it came"},
		{false, "resourceVersion=" + ours, ""},
		{false, "resourceVersionMatch=NotOlderThan&resourceVersion=" + ours, ""},
		{false, "resourceVersionMatch=Exact&resourceVersion=" + ours, "410"},
		{false, "limit=3&resourceVersion=" + ours, "410"},
		{true, "resourceVersion=" + ours, "410"},
		{true, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=" + ours, "allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&watch=true"},
		{false, "continue=" + token, "410"},
		{false, "resourceVersion=" + vec(8, 1), "504"},
		{false, "resourceVersionMatch=Newer&resourceVersion=" + ours, "resourceVersion=48213&resourceVersionMatch=Newer"},
	} {
		v, _ := url.ParseQuery(row.query)
		a, changed, refusal := place().Single(ParseQuery(v, row.watch), 1)
		got := "as it came"
		if refusal != nil {
			got = fmt.Sprint(refusal.Code)
		} else if changed {
			a.Set(v)
			got = v.Encode()
		}
		if got != row.want {
			t.Errorf("%s is %s, not %s", row.query, got, row.want)
		}
	}
}

func TestNamed(t *testing.T) {
	for _, row := range []struct {
		rv     string
		merged bool
		want   string
	}{
		{"", true, ""}, {"0", true, "0"}, {"12", true, "12"}, {"abc", true, "abc"},
		{vec(7, 0, 48213, 901), true, "901"}, {vec(7, 0, 48213), true, ""}, {vec(6, 0, 48213, 901), true, ""},
		{vec(7, 0, 48213, 901), false, ""}, {vec(8, 0, 48213, 901), true, "504"},
	} {
		got, refusal := place().Named(row.rv, 2, row.merged)
		if refusal != nil {
			got = fmt.Sprint(refusal.Code)
		}
		if got != row.want {
			t.Errorf("%q is %q, not %q", row.rv, got, row.want)
		}
	}
}

func TestToken(t *testing.T) {
	hash := CollectionHash("/api/v1/pods", "a=b", "")
	if len(hash) != 16 || hash == CollectionHash("/api/v1/pods", "", "a=b") {
		t.Errorf("hash %q", hash)
	}
	want := Token{Vector: Vector{7, []uint64{0, 48213, 901}}, Slot: 2, Inner: "in/ner", Inconsistent: true}
	s := want.Encode(hash)
	got, refusal := DecodeToken(s, hash, 7)
	if refusal != nil || !got.Vector.Equal(want.Vector) || got.Slot != 2 || got.Inner != "in/ner" || !got.Inconsistent {
		t.Errorf("came back as %+v, %v", got, refusal)
	}
	if !IsToken(s) || IsToken("abc") || IsToken(base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1"}`))) {
		t.Error("IsToken")
	}
	raw := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	for why, row := range map[string]struct {
		token string
		hash  string
		epoch uint64
		code  int
	}{
		"another collection":        {s, "0000000000000000", 7, 400},
		"an older epoch":            {s, hash, 8, 410},
		"a newer epoch":             {s, hash, 6, 504},
		"cut off":                   {s[:len(s)-3], hash, 7, 400},
		"no base64":                 {"%%%", hash, 7, 400},
		"no JSON":                   {raw("x"), hash, 7, 400},
		"another version":           {raw(`{"v":"mca/2"}`), hash, 7, 400},
		"no vector":                 {raw(`{"v":"mca/1","rv":"12","h":"` + hash + `"}`), hash, 7, 400},
		"a slot beyond":             {raw(`{"v":"mca/1","rv":"` + vec(7, 1) + `","h":"` + hash + `","c":1}`), hash, 7, 400},
		"a slot below":              {raw(`{"v":"mca/1","rv":"` + vec(7, 1) + `","h":"` + hash + `","c":-1}`), hash, 7, 400},
		"of a time when one had it": {raw(`{"v":"meta.k8s.io/v1","rv":5,"start":"a"}`), hash, 7, 410},
	} {
		if _, refusal := DecodeToken(row.token, row.hash, row.epoch); refusal == nil || refusal.Code != row.code {
			t.Errorf("%s: %v", why, refusal)
		}
	}
}

func TestPlanOfAPage(t *testing.T) {
	p := place()
	p.Slots = []int{2, 0, 1}
	plan := func(tok Token) ([]Ask, int) {
		plan, refusal := p.Plan(Query{Continue: tok.Encode(p.Hash), Limit: 5})
		if refusal != nil {
			return nil, refusal.Code
		}
		if plan.Token == nil || !plan.Known {
			t.Errorf("%+v", plan)
		}
		return plan.Asks, 0
	}
	v := Vector{7, []uint64{3, 48213, 901}}
	for _, row := range []struct {
		why   string
		token Token
		want  []Ask
		code  int
	}{
		{"in the middle", Token{Vector: v, Slot: 0, Inner: "x"}, []Ask{{Slot: 0, Continue: "x", Limit: 5}, Exactly(1, 48213, 5)}, 0},
		{"a new member", Token{Vector: v, Slot: 2}, []Ask{Exactly(2, 901, 5), Exactly(0, 3, 5), Exactly(1, 48213, 5)}, 0},
		{"inconsistent", Token{Vector: v, Slot: 0, Inconsistent: true}, []Ask{{Slot: 0, Limit: 5}, Exactly(1, 48213, 5)}, 0},
		{"one was left out", Token{Vector: Vector{7, []uint64{0, 48213, 901}}, Slot: 2}, []Ask{Exactly(2, 901, 5), Exactly(1, 48213, 5)}, 0},
		{"whose turn it is was left out", Token{Vector: Vector{7, []uint64{0, 48213, 901}}, Slot: 0}, nil, 410},
	} {
		got, code := plan(row.token)
		if fmt.Sprint(got) != fmt.Sprint(row.want) || code != row.code {
			t.Errorf("%s: %+v %d", row.why, got, code)
		}
	}
	if _, refusal := p.Plan(Query{Continue: Token{Vector: v, Slot: 0}.Encode(p.Hash), RV: "5"}); refusal == nil || refusal.Code != 400 {
		t.Errorf("continue with a version: %v", refusal)
	}
}

func event(r *Ring, slot int, rv uint64, v Vector) {
	r.Step(Step{Slot: slot, Sent: rv}, v, time.Time{}.Add(1))
}

func move(r *Ring, slot int, from, to uint64, v Vector) {
	r.Step(Step{Slot: slot, From: from, To: to}, v, time.Time{}.Add(1))
}

func TestRing(t *testing.T) {
	var r Ring
	both := []int{0, 1}
	later := time.Time{}.Add(1 + ripe)
	v := func(a, b uint64) Vector { return Vector{7, []uint64{a, b}} }
	knows := func(rv uint64) bool { _, ok := r.Get(7, rv, both, later); return ok }
	if knows(5) {
		t.Error("an empty ring knows something")
	}
	event(&r, 0, 5, v(5, 2))
	if knows(5) {
		t.Error("5 may be of the other cluster as well, of which nothing is known")
	}
	move(&r, 1, 2, 3, v(5, 2))
	if knows(5) {
		t.Error("5 may be of the other cluster as well, which is not so far yet here")
	}
	move(&r, 1, 3, 9, v(5, 9))
	event(&r, 0, 5, v(5, 2))
	if got, ok := r.Get(7, 5, both, later); !ok || !got.Equal(v(5, 2)) {
		t.Errorf("%v %v", got, ok)
	}
	if _, ok := r.Get(7, 5, both, later.Add(-1)); ok {
		t.Error("a ring that is too young")
	}
	if _, ok := r.Get(8, 5, both, later); ok {
		t.Error("a position of another epoch")
	}
	move(&r, 1, 20, 30, v(5, 30))
	if knows(5) {
		t.Error("of the other cluster there is a gap around 5")
	}
	move(&r, 1, 2, 20, v(5, 30))
	if !knows(5) {
		t.Error("the gap is closed")
	}
	event(&r, 0, 5, v(5, 3))
	if knows(5) {
		t.Error("two places under one number")
	}
	event(&r, 0, 5, v(5, 3))
	if knows(5) {
		t.Error("two places under one number, and one of them again")
	}
	event(&r, 0, 6, v(6, 3))
	event(&r, 1, 6, v(6, 3))
	if knows(6) {
		t.Error("a number of two clusters")
	}
	event(&r, 0, 8, v(8, 3))
	r.Object(1, 4, v(8, 3))
	r.Object(1, 12, v(8, 3))
	if knows(8) {
		t.Error("8 may be of an object that a stream began with")
	}

	move(&r, 1, 9, 19, v(8, 19))
	r.Step(Step{Sent: 13, Nowhere: true}, v(13, 19), later)
	event(&r, 0, 13, v(13, 19))
	if knows(13) {
		t.Error("a client that stood nowhere")
	}

	r = Ring{}
	move(&r, 1, 2, 9, v(5, 9))
	event(&r, 0, farApart+9, v(farApart+9, 9))
	if knows(farApart + 9) {
		t.Error("the other cluster may be so far")
	}
	event(&r, 0, farApart+10, v(farApart+10, 9))
	if !knows(farApart + 10) {
		t.Error("the other cluster cannot be so far")
	}

	r = Ring{}
	move(&r, 1, 1, 9999, v(1, 9999))
	for i := range uint64(ringSize) {
		event(&r, 0, 1000+i, v(1000+i, 9999))
	}
	if !knows(1000) {
		t.Error("the oldest of the last ones is gone")
	}
	event(&r, 0, 9000, v(9000, 9999))
	if knows(1000) {
		t.Error("more than the last ones are there")
	}
	event(&r, 0, 999, v(9000, 9999))
	if knows(999) {
		t.Error("the other cluster's event of that number may be forgotten")
	}
	if len(r.keys) != ringSize {
		t.Errorf("%d keys", len(r.keys))
	}
	event(&r, 0, 9001, Vector{7, []uint64{1, 2, 3}})
	if knows(9000) {
		t.Error("places of a narrower document")
	}
}

func FuzzParseRV(f *testing.F) {
	f.Add(vec(7, 0, 48213, 901))
	f.Add("901")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		rv, bad := ParseRV(s)
		switch {
		case bad != nil:
			if bad.Code != 400 {
				t.Errorf("%q: %v", s, bad)
			}
		case rv.Vector != nil:
			if rv.Vector.String() != s {
				t.Errorf("%q came back as %q", s, rv.Vector)
			}
		case rv.Plain > 0:
			if rvText(rv.Plain) != s {
				t.Errorf("%q came back as %d", s, rv.Plain)
			}
		case s != "" && s != "0":
			t.Errorf("%q is nothing", s)
		}
	})
}

// FuzzPlan checks that no vector and no merged token is sent to a member, whatever the request is.
func FuzzPlan(f *testing.F) {
	f.Add("resourceVersion="+vec(7, 0, 48213, 901), true)
	f.Add("limit=5&continue="+Token{Vector: Vector{7, []uint64{0, 5, 6}}, Slot: 1}.Encode(place().Hash), false)
	f.Add("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion="+vec(7, 0, 0, 901), true)
	f.Fuzz(func(t *testing.T, query string, watch bool) {
		v, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		plan, refusal := place().Plan(ParseQuery(v, watch))
		if refusal != nil {
			return
		}
		for _, a := range plan.Asks {
			a.Set(v)
			if rv, bad := ParseRV(v.Get("resourceVersion")); bad == nil && rv.Vector != nil {
				t.Errorf("%s sends a member %s", query, v.Encode())
			}
			if IsToken(v.Get("continue")) {
				if plan.Token == nil || plan.Token.Inner != v.Get("continue") {
					t.Errorf("%s sends a member %s", query, v.Encode())
				}
			}
			if !plan.Verbatim && ParseQuery(v, watch).refused() {
				t.Errorf("%s sends a member %s, which the API refuses", query, v.Encode())
			}
		}
	})
}

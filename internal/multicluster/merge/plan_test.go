package merge

import (
	"encoding/base64"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// testPlanner returns the example of the documentation: members east and west have slots 1 and 2; here has slot 0
// and is not a member.
// Equal compares two vectors; missing fields are 0.
func (v Vector) Equal(o Vector) bool {
	if v.Epoch != o.Epoch {
		return false
	}
	for i := range max(len(v.Fields), len(o.Fields)) {
		if v.At(i) != o.At(i) {
			return false
		}
	}
	return true
}

func testPlanner() Planner {
	return Planner{Epoch: 7, Width: 3, Slots: []int{1, 2}, Hash: "0123456789abcdef"}
}

func testVector(epoch uint64, fields ...uint64) string { return Vector{epoch, fields}.String() }

func TestVectorOfTheExample(t *testing.T) {
	const want = "10000000007000000000000000000000000000000000004821300000000000000000901"
	if got := testVector(7, 0, 48213, 901); got != want {
		t.Errorf("east at 48213 and west at 901 is %s", got)
	}
	rv, bad := ParseResourceVersion(want)
	switch {
	case bad != nil:
		t.Errorf("parsed: bad = %v, want nil", bad)
	case rv.Vector == nil:
		t.Error("parsed: rv.Vector is nil")
	case !rv.Vector.Equal(Vector{7, []uint64{0, 48213, 901}}):
		t.Errorf("parsed: rv.Vector = %v, want %v", rv.Vector, Vector{7, []uint64{0, 48213, 901}})
	}
}

func TestParseResourceVersion(t *testing.T) {
	for s, want := range map[string]string{
		"":                                   "nothing",
		"0":                                  "nothing",
		"901":                                "plain",
		"18446744073709551615":               "plain",
		"18446744073709551616":               "400",
		"00":                                 "400",
		"007":                                "400",
		"-1":                                 "400",
		"+1":                                 "400",
		"1e3":                                "400",
		"abc":                                "400",
		"١":                                  "400",
		strings.Repeat("1", 21):              "400",
		strings.Repeat("1", 30):              "400",
		"2" + testVector(7, 0, 1)[1:]:        "400",
		testVector(7, 0, 1) + "0":            "400",
		testVector(0, 1):                     "400",
		testVector(7, make([]uint64, 32)...): "vector",
		testVector(7, make([]uint64, 33)...): "400",
		"1000000000799999999999999999999":    "400",
		testVector(MaxEpoch, 1<<64-1):        "vector",
		testVector(1, 0):                     "vector",
		" " + testVector(7, 1):               "400",
		testVector(7, 0, 48213, 901):         "vector",
		"1000000000700000000000000000001\n":  "400",
	} {
		rv, bad := ParseResourceVersion(s)
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
			t.Fatalf("%s is not a number", v)
		}
		return n
	}
	for range 2000 {
		v := newVector(1+r.Uint64N(MaxEpoch), 1+r.IntN(MaxSlots))
		for i := range v.Fields {
			v.Fields[i] = r.Uint64() >> r.IntN(64)
		}
		rv, bad := ParseResourceVersion(v.String())
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
			t.Fatal("a field decreased")
		}
	}
}

// ADP-10: TestPlan covers the table "request on a merged collection", row by row.
func TestPlan(t *testing.T) {
	const list, watch = false, true
	current := testVector(7, 0, 48213, 901)
	half := testVector(7, 0, 48213, 0)
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
		{"a list not older", list, "resourceVersion=" + current, "resourceVersion=48213&resourceVersionMatch=NotOlderThan|resourceVersion=901&resourceVersionMatch=NotOlderThan"},
		{"a list not older, said", list, "resourceVersionMatch=NotOlderThan&resourceVersion=" + current, "resourceVersion=48213&resourceVersionMatch=NotOlderThan|resourceVersion=901&resourceVersionMatch=NotOlderThan"},
		{"of a member that is not known", list, "resourceVersion=" + half, "resourceVersion=48213&resourceVersionMatch=NotOlderThan|"},
		{"a watch-list not older", watch, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=" + half,
			"resourceVersion=48213&resourceVersionMatch=NotOlderThan&sendInitialEvents=true|resourceVersionMatch=NotOlderThan&sendInitialEvents=true"},
		{"not older with a limit", list, "limit=5&resourceVersionMatch=NotOlderThan&resourceVersion=" + half, "limit=5&resourceVersion=48213&resourceVersionMatch=NotOlderThan|limit=5"},
		// V, exact.
		{"exactly", list, "resourceVersionMatch=Exact&resourceVersion=" + current, "resourceVersion=48213&resourceVersionMatch=Exact|resourceVersion=901&resourceVersionMatch=Exact"},
		{"a limit is exact", list, "limit=5&resourceVersion=" + current, "limit=5&resourceVersion=48213&resourceVersionMatch=Exact|limit=5&resourceVersion=901&resourceVersionMatch=Exact"},
		{"exactly, of a member that is not known", list, "resourceVersionMatch=Exact&resourceVersion=" + half, "410"},
		{"a limit, of a member that is not known", list, "limit=5&resourceVersion=" + half, "410"},
		// A position without meaning here, not exact: the most recent state.
		{"a list from a plain number", list, "resourceVersion=901", "|"},
		{"a list of an older epoch", list, "resourceVersion=" + testVector(6, 0, 48213, 901), "|"},
		{"a list with a cluster that is no member", list, "resourceVersionMatch=NotOlderThan&resourceVersion=" + testVector(7, 5, 48213, 901), "|"},
		{"with a cluster beyond ours", list, "resourceVersion=" + testVector(7, 0, 48213, 901, 4), "|"},
		{"a watch-list from a plain number", watch, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=901", "resourceVersionMatch=NotOlderThan&sendInitialEvents=true|same"},
		{"a watch-list of an older epoch", watch, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=" + testVector(6, 0, 1, 1), "resourceVersionMatch=NotOlderThan&sendInitialEvents=true|same"},
		// The same, exact.
		{"exactly a plain number", list, "resourceVersionMatch=Exact&resourceVersion=901", "410"},
		{"a limit and a plain number", list, "limit=5&resourceVersion=901", "410"},
		{"exactly an older epoch", list, "resourceVersionMatch=Exact&resourceVersion=" + testVector(6, 0, 48213, 901), "410"},
		{"exactly with a cluster that is no member", list, "resourceVersionMatch=Exact&resourceVersion=" + testVector(7, 5, 48213, 901), "410"},
		// A watch with V.
		{"a watch", watch, "resourceVersion=" + current, "resourceVersion=48213|resourceVersion=901"},
		{"a watch with bookmarks and an end of its own", watch, "allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=" + current, "resourceVersion=48213|resourceVersion=901"},
		{"a member joins", watch, "resourceVersion=" + half, "resourceVersion=48213|resourceVersionMatch=NotOlderThan&sendInitialEvents=true"},
		{"a narrower one, of before a cluster was added", watch, "resourceVersion=" + testVector(7, 0, 48213), "resourceVersion=48213|resourceVersionMatch=NotOlderThan&sendInitialEvents=true"},
		{"a wider one that says nothing more", watch, "resourceVersion=" + testVector(7, 0, 48213, 901, 0), "resourceVersion=48213|resourceVersion=901"},
		{"a watch from now on with V", watch, "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=" + current, "resourceVersion=48213|resourceVersion=901"},
		{"a watch of an older epoch", watch, "resourceVersion=" + testVector(6, 0, 48213, 901), "410"},
		{"a watch with a cluster that is no member", watch, "resourceVersion=" + testVector(7, 5, 48213, 901), "410"},
		{"a watch from a plain number", watch, "resourceVersion=12", "410"},
		// A newer epoch.
		{"a list of a newer document", list, "resourceVersion=" + testVector(8, 0, 1, 1), "504"},
		{"exactly", list, "resourceVersionMatch=Exact&resourceVersion=" + testVector(8, 0, 1, 1), "504"},
		{"a watch", watch, "resourceVersion=" + testVector(8, 0, 1, 1), "504"},
		{"a watch-list", watch, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=" + testVector(8, 0, 1, 1), "504"},
		// Combinations that the API refuses.
		{"sendInitialEvents on a list", list, "sendInitialEvents=true&resourceVersion=" + current, "first: resourceVersion=48213&sendInitialEvents=true"},
		{"a match without a version", list, "resourceVersionMatch=Exact", "first: resourceVersionMatch=Exact"},
		{"a match with continue", list, "resourceVersionMatch=Exact&continue=abc&resourceVersion=" + current, "first: continue=abc&resourceVersion=48213&resourceVersionMatch=Exact"},
		{"exactly 0", list, "resourceVersionMatch=Exact&resourceVersion=0", "first: resourceVersion=0&resourceVersionMatch=Exact"},
		{"an unknown match", list, "resourceVersionMatch=Newer&resourceVersion=" + half, "first: resourceVersion=48213&resourceVersionMatch=Newer"},
		{"a watch-list without a match", watch, "sendInitialEvents=true", "first: sendInitialEvents=true"},
		{"a watch-list that is exact", watch, "sendInitialEvents=true&resourceVersionMatch=Exact", "first: resourceVersionMatch=Exact&sendInitialEvents=true"},
		{"a watch with a match", watch, "resourceVersionMatch=NotOlderThan&resourceVersion=" + current, "first: resourceVersion=48213&resourceVersionMatch=NotOlderThan"},
		// Invalid positions.
		{"a list", list, "resourceVersion=abc", "400"},
		{"a watch", watch, "resourceVersion=abc", "400"},
		{"a token", list, "continue=abc", "400"},
	} {
		t.Run(row.why, func(t *testing.T) {
			p := testPlanner()
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
				var requests []string
				for i, a := range plan.Requests {
					v, _ := url.ParseQuery(row.query)
					a.Set(v)
					switch {
					case a.Watch != row.watch:
						t.Errorf("member: a.Watch = %v, want %v; %d; %s", a.Watch, row.watch, i, v.Encode())
					case a.Watch && (v.Get("allowWatchBookmarks") != "true" || v.Get("watch") != "true"):
						t.Errorf(`member: a.Watch && (v.Get("allowWatchBookmarks") != "true" || v.Get("watch") != "true"); %d, %s`,
							i, v.Encode())
					case v.Has("timeoutSeconds"):
						t.Errorf(`member: v.Has("timeoutSeconds") is true; %d, %s`, i, v.Encode())
					}
					v.Del("watch")
					v.Del("allowWatchBookmarks")
					requests = append(requests, v.Encode())
				}
				if !plan.Verbatim && (len(plan.Requests) != 2 || plan.Requests[0].Slot != 1 || plan.Requests[1].Slot != 2) {
					t.Fatalf("asked %+v", plan.Requests)
				}
				got = strings.Join(requests, "|")
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

// TestSingleCluster checks that vectors and merged tokens never reach a cluster that alone holds a collection.
func TestSingleCluster(t *testing.T) {
	current := testVector(7, 0, 48213, 901)
	token := continueToken{Vector: Vector{7, []uint64{0, 1, 2}}, Slot: 1}.Encode(testPlanner().Hash)
	for _, row := range []struct {
		watch       bool
		query, want string
	}{
		{false, "resourceVersion=12", "as it came"},
		{false, "continue=abc", "as it came"},
		{true, "resourceVersion=nonsense", "as it came"},
		{false, "resourceVersion=" + current, ""},
		{false, "resourceVersionMatch=NotOlderThan&resourceVersion=" + current, ""},
		{false, "resourceVersionMatch=Exact&resourceVersion=" + current, "410"},
		{false, "limit=3&resourceVersion=" + current, "410"},
		{true, "resourceVersion=" + current, "410"},
		{true, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=" + current, "allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&watch=true"},
		{false, "continue=" + token, "410"},
		{false, "resourceVersion=" + testVector(8, 1), "504"},
		{false, "resourceVersionMatch=Newer&resourceVersion=" + current, "resourceVersion=48213&resourceVersionMatch=Newer"},
	} {
		v, _ := url.ParseQuery(row.query)
		a, changed, refusal := testPlanner().SingleCluster(ParseQuery(v, row.watch), 1)
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

func TestObjectVersion(t *testing.T) {
	for _, row := range []struct {
		rv     string
		merged bool
		want   string
	}{
		{"", true, ""}, {"0", true, "0"}, {"12", true, "12"}, {"abc", true, "abc"},
		{testVector(7, 0, 48213, 901), true, "901"}, {testVector(7, 0, 48213), true, ""}, {testVector(6, 0, 48213, 901), true, ""},
		{testVector(7, 0, 48213, 901), false, ""}, {testVector(8, 0, 48213, 901), true, "504"},
	} {
		got, refusal := testPlanner().ObjectVersion(row.rv, 2, row.merged)
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
	want := continueToken{Vector: Vector{7, []uint64{0, 48213, 901}}, Slot: 2, Inner: "in/ner", Inconsistent: true}
	s := want.Encode(hash)
	got, refusal := decodeToken(s, hash, 7)
	switch {
	case refusal != nil:
		t.Errorf("came back: refusal = %v, want nil", refusal)
	case !got.Vector.Equal(want.Vector):
		t.Errorf("came back: got.Vector = %v, want %v", got.Vector, want.Vector)
	case got.Slot != 2:
		t.Errorf("came back: got.Slot = %v, want 2", got.Slot)
	case got.Inner != "in/ner":
		t.Errorf("came back: got.Inner = %q, want %q", got.Inner, "in/ner")
	case !got.Inconsistent:
		t.Errorf("came back: got.Inconsistent is false; got = %+v, refusal = %v", got, refusal)
	}
	switch {
	case !isToken(s):
		t.Error("IsToken: isToken(s) is false")
	case isToken("abc"):
		t.Error(`IsToken: isToken("abc") is true`)
	case isToken(base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1"}`))):
		t.Error("IsToken: isToken(base64.RawURLEncoding.EncodeToString([]byte(`{\"v\":\"meta.k8s.io/v1\"}`))) is true")
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
		"a slot beyond":             {raw(`{"v":"mca/1","rv":"` + testVector(7, 1) + `","h":"` + hash + `","c":1}`), hash, 7, 400},
		"a slot below":              {raw(`{"v":"mca/1","rv":"` + testVector(7, 1) + `","h":"` + hash + `","c":-1}`), hash, 7, 400},
		"of a time when one had it": {raw(`{"v":"meta.k8s.io/v1","rv":5,"start":"a"}`), hash, 7, 410},
	} {
		if _, refusal := decodeToken(row.token, row.hash, row.epoch); refusal == nil || refusal.Code != row.code {
			t.Errorf("%s: %v", why, refusal)
		}
	}
}

func TestPlanOfAPage(t *testing.T) {
	p := testPlanner()
	p.Slots = []int{2, 0, 1}
	plan := func(tok continueToken) ([]MemberRequest, int) {
		plan, refusal := p.Plan(Query{Continue: tok.Encode(p.Hash), Limit: 5})
		if refusal != nil {
			return nil, refusal.Code
		}
		if plan.Token == nil || !plan.Known {
			t.Errorf("%+v", plan)
		}
		return plan.Requests, 0
	}
	v := Vector{7, []uint64{3, 48213, 901}}
	for _, row := range []struct {
		why   string
		token continueToken
		want  []MemberRequest
		code  int
	}{
		{"in the middle", continueToken{Vector: v, Slot: 0, Inner: "x"}, []MemberRequest{{Slot: 0, Continue: "x", Limit: 5}, requestExactly(1, 48213, 5)}, 0},
		{"a new member", continueToken{Vector: v, Slot: 2}, []MemberRequest{requestExactly(2, 901, 5), requestExactly(0, 3, 5), requestExactly(1, 48213, 5)}, 0},
		{"inconsistent", continueToken{Vector: v, Slot: 0, Inconsistent: true}, []MemberRequest{{Slot: 0, Limit: 5}, requestExactly(1, 48213, 5)}, 0},
		{"one was left out", continueToken{Vector: Vector{7, []uint64{0, 48213, 901}}, Slot: 2}, []MemberRequest{requestExactly(2, 901, 5), requestExactly(1, 48213, 5)}, 0},
		{"whose turn it is was left out", continueToken{Vector: Vector{7, []uint64{0, 48213, 901}}, Slot: 0}, nil, 410},
	} {
		got, code := plan(row.token)
		if fmt.Sprint(got) != fmt.Sprint(row.want) || code != row.code {
			t.Errorf("%s: %+v %d", row.why, got, code)
		}
	}
	if _, refusal := p.Plan(Query{Continue: continueToken{Vector: v, Slot: 0}.Encode(p.Hash), RV: "5"}); refusal == nil || refusal.Code != 400 {
		t.Errorf("continue with a version: %v", refusal)
	}
}

func FuzzParseResourceVersion(f *testing.F) {
	f.Add(testVector(7, 0, 48213, 901))
	f.Add("901")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		rv, bad := ParseResourceVersion(s)
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
			if formatRV(rv.Plain) != s {
				t.Errorf("%q came back as %d", s, rv.Plain)
			}
		case s != "" && s != "0":
			t.Errorf("%q is nothing", s)
		}
	})
}

// FuzzPlan checks that no vector and no merged token is sent to a member, whatever the request is.
func FuzzPlan(f *testing.F) {
	f.Add("resourceVersion="+testVector(7, 0, 48213, 901), true)
	f.Add("limit=5&continue="+continueToken{Vector: Vector{7, []uint64{0, 5, 6}}, Slot: 1}.Encode(testPlanner().Hash), false)
	f.Add("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion="+testVector(7, 0, 0, 901), true)
	f.Fuzz(func(t *testing.T, query string, watch bool) {
		v, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		plan, refusal := testPlanner().Plan(ParseQuery(v, watch))
		if refusal != nil {
			return
		}
		for _, a := range plan.Requests {
			a.Set(v)
			if rv, bad := ParseResourceVersion(v.Get("resourceVersion")); bad == nil && rv.Vector != nil {
				t.Errorf("%s sends a member %s", query, v.Encode())
			}
			if isToken(v.Get("continue")) {
				if plan.Token == nil || plan.Token.Inner != v.Get("continue") {
					t.Errorf("%s sends a member %s", query, v.Encode())
				}
			}
			if !plan.Verbatim && ParseQuery(v, watch).isInvalid() {
				t.Errorf("%s sends a member %s, which the API refuses", query, v.Encode())
			}
		}
	})
}

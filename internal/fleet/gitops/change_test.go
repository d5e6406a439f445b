package gitops

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

var day = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func proposed() Change {
	return OpenChange(Change{ID: "c1", Ref: Ref{"RunnerPool", "gh-nix"}, Proposer: "amy@acme.dev", Authors: []string{"amy", "amy@acme.dev"}, Head: "aaaa", Base: "0000"}, day)
}

func anyApprover(Approval) bool { return true }

// PL-06, PLANE-11: an author of a change, under any name, cannot approve it. An approval covers one
// commit, expires, and is used only once.
func TestPL06_Approvals(t *testing.T) {
	c := proposed()
	for _, by := range []string{"amy@acme.dev", "AMY@acme.dev", "amy"} {
		if _, err := c.Approve(by, "n1", "aaaa", day); !errors.Is(err, ErrSelfApproval) {
			t.Errorf("%s: %v", by, err)
		}
	}
	if _, err := c.Approve("pat@platform.dev", "n1", "bbbb", day); !errors.Is(err, ErrHeadChanged) {
		t.Errorf("of another commit: %v", err)
	}
	if _, err := c.Merge("pat@platform.dev", "aaaa", anyApprover, day); !errors.Is(err, ErrNotApproved) {
		t.Errorf("without approval: %v", err)
	}
	approved, err := c.Approve("pat@platform.dev", "n1", "aaaa", day)
	switch {
	case err != nil:
		t.Fatal(err)
	case approved.State != StateApproved:
		t.Fatalf("approved.State = %q, want %q", approved.State, StateApproved)
	case len(c.Approvals) != 0:
		t.Fatalf("len(c.Approvals) = %v, want 0", len(c.Approvals))
	}

	for name, x := range map[string]struct {
		c    Change
		head string
		may  func(Approval) bool
		now  time.Time
		want error
	}{
		"it is as it was":             {approved, "aaaa", anyApprover, day.Add(time.Hour), nil},
		"after a week":                {approved, "aaaa", anyApprover, day.Add(ApprovalLifetime), ErrNotApproved},
		"the role is revoked":         {approved, "aaaa", func(Approval) bool { return false }, day, ErrNotApproved},
		"another commit":              {approved.Amend("amy@acme.dev", Edit{}, "bbbb"), "bbbb", anyApprover, day, ErrNotApproved},
		"pushed at the forge":         {approved.Observe(Request{Head: "bbbb", Open: true, Authors: []string{"mallory"}}), "bbbb", anyApprover, day, ErrNotApproved},
		"the approver is an author":   {approved.Observe(Request{Head: "aaaa", Open: true, Authors: []string{"Pat@platform.dev"}}), "aaaa", anyApprover, day, ErrNotApproved},
		"another commit was reviewed": {approved, "bbbb", anyApprover, day, ErrHeadChanged},
		"the forge blocks it":         {approved.Observe(Request{Head: "aaaa", Open: true, Blocked: "a review is required"}), "aaaa", anyApprover, day, ErrBlocked},
		"closed at the forge":         {approved.Observe(Request{Head: "aaaa"}), "aaaa", anyApprover, day, ErrNotOpen},
		"a person amended it":         {approved.Amend("pat@platform.dev", Edit{}, "cccc"), "cccc", anyApprover, day, ErrNotApproved},
		"merged by a person":          {approved.Observe(Request{Head: "aaaa", Merged: true}), "aaaa", anyApprover, day, ErrNotOpen},
		"a second at the time":        {must(approved.Merge("pat@platform.dev", "aaaa", anyApprover, day)), "aaaa", anyApprover, day, ErrNotOpen},
	} {
		merging, err := x.c.Merge("pat@platform.dev", x.head, x.may, x.now)
		if !errors.Is(err, x.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (merging.State != StateMerging || len(merging.Approvals) != 0) {
			t.Errorf("%s: %+v", name, merging)
		}
	}

	merging := must(approved.Merge("pat@platform.dev", "aaaa", anyApprover, day))
	again := merging.MergeRefused("a check failed")
	if _, err := again.Merge("pat@platform.dev", "aaaa", anyApprover, day); err == nil {
		t.Error("an approval was used twice")
	}
	amended := approved.Amend("pat@platform.dev", Edit{}, "cccc")
	for _, by := range []string{"amy@acme.dev", "pat@platform.dev"} {
		if _, err := amended.Approve(by, "n1", "cccc", day); !errors.Is(err, ErrSelfApproval) {
			t.Errorf("%s approves what both wrote: %v", by, err)
		}
	}
}

func must(c Change, err error) Change {
	if err != nil {
		panic(err)
	}
	return c
}

// Law: in every order of events, a merged commit was approved within the last week by a person who
// is not an author, and no approval counts twice.
func TestRandomLives(t *testing.T) {
	merged := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 6))
		names := []string{"amy@acme.dev", "Amy@acme.dev", "pat@platform.dev", "bob@acme.dev", "mel@acme.dev"}
		c, now := proposed(), day
		written := map[string]bool{"amy@acme.dev": true, "amy": true}
		good := map[string]time.Time{} // approvals of the current head
		for range 12 {
			owner := names[r.IntN(len(names))]
			now = now.Add(time.Duration(r.IntN(80)) * time.Hour)
			switch r.IntN(6) {
			case 0:
				c = c.Amend(owner, Edit{}, fmt.Sprint("head", r.IntN(1000)))
				written[strings.ToLower(owner)] = true
				clear(good)
			case 1:
				head := c.Head
				if r.IntN(3) == 0 {
					head = fmt.Sprint("head", r.IntN(1000))
				}
				if head != c.Head {
					clear(good)
				}
				written[strings.ToLower(owner)] = true
				c = c.Observe(Request{Head: head, Open: true, Authors: []string{owner}})
			case 2:
				c = c.Observe(Request{Head: c.Head, Open: true})
			case 5:
				next, err := c.Merge(owner, c.Head, anyApprover, now)
				may := false
				for by, at := range good {
					may = may || !written[by] && now.Before(at.Add(ApprovalLifetime))
				}
				if (err == nil) != may {
					t.Fatalf("seed %d: %v, and approved by %v, written by %v", seed, err, good, written)
				}
				if c = next; err == nil {
					merged++
					clear(good)
					c = c.MergeRefused("a check failed").Observe(Request{Head: c.Head, Open: true})
				}
			default:
				next, err := c.Approve(owner, "n1", c.Head, now)
				if (err == nil) == written[strings.ToLower(owner)] {
					t.Fatalf("seed %d: %s wrote %v: %v", seed, owner, written, err)
				}
				if c = next; err == nil {
					good[strings.ToLower(owner)] = now
				}
			}
			b, err := json.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			c = Change{}
			if err := json.Unmarshal(b, &c); err != nil { // it is stored between two steps
				t.Fatal(err)
			}
		}
	}
	if merged < 500 {
		t.Errorf("%d were merged", merged)
	}
}

// PL-06: text of people cannot become a trailer, a mention or another title.
func TestTexts(t *testing.T) {
	c := proposed()
	c.Title = "more \x1b[31mrunners\r\n\nCo-authored-by: Pat <pat@platform.dev>"
	c.Reason = "we need them\n\nCo-authored-by: Pat <pat@platform.dev>\nTailplane-Change: c2\n@everybody look"
	c.Risk = Risk{Level: "high", Why: []string{"isolation"}}
	message := CommitMessage(c)
	if title, _, _ := strings.Cut(message, "\n"); title != "more [31mrunners Co-authored-by: Pat <pat@platform.dev>" {
		t.Errorf("title %q", title)
	}
	var trailers []string
	for l := range strings.Lines(message) {
		if strings.Contains(l, ": ") && !strings.HasPrefix(l, ">") && l[0] >= 'A' && l[0] <= 'Z' {
			trailers = append(trailers, strings.TrimSpace(l))
		}
	}
	if !slices.Equal(trailers, []string{"Tailplane-Change: c1"}) {
		t.Errorf("trailers %q in\n%s", trailers, message)
	}
	switch body := RequestBody(c, "https://dashboard/changes/c1"); {
	case strings.Contains(body, "@everybody"):
		t.Errorf("body = %q contains %q", body, "@everybody")
	case !strings.Contains(body, "**high** (isolation)"):
		t.Errorf("body = %q does not contain %q", body, "**high** (isolation)")
	case !strings.Contains(body, "https://dashboard/changes/c1"):
		t.Errorf("body = %q does not contain %q", body, "https://dashboard/changes/c1")
	}
	if long := Title(strings.Repeat("ü", 400), c.Ref); len([]rune(long)) != titleLimit {
		t.Error(len([]rune(long)))
	}
	switch {
	case Title(" \n", c.Ref) != "Change RunnerPool gh-nix":
		t.Error(`title or id: Title(" \n", c.Ref) != "Change RunnerPool gh-nix"`)
	case NewID("Amy@acme.dev", "k") != NewID("amy@acme.dev", "k"):
		t.Error(`title or id: NewID("Amy@acme.dev", "k") != NewID("amy@acme.dev", "k")`)
	case NewID("amy@acme.dev", "k") == NewID("amy@acme.dev", "l"):
		t.Error(`title or id: NewID("amy@acme.dev", "k") == NewID("amy@acme.dev", "l")`)
	}
}

func TestRisk(t *testing.T) {
	pool := map[string]any{"scaling": map[string]any{"max": json.Number("3")}, "isolation": "Node"}
	for _, x := range []struct {
		was, is map[string]any
		level   string
	}{
		{nil, pool, "medium"}, {pool, nil, "high"}, {pool, pool, "low"},
		{pool, map[string]any{"scaling": map[string]any{"max": json.Number("4")}, "isolation": "Node"}, "medium"},
		{pool, map[string]any{"scaling": map[string]any{"max": json.Number("4")}, "isolation": "None"}, "high"},
	} {
		if got := AssessRisk(x.was, x.is); got.Level != x.level {
			t.Errorf("%v to %v: %+v", x.was, x.is, got)
		}
	}
}

func TestOwner(t *testing.T) {
	enrollment := Ref{"RunnerEnrollment", "acme"}
	pool := Ref{"RunnerPool", "acme-gpu"}
	spec := func(text string) (m map[string]any) {
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	for _, x := range []struct {
		ref      Ref
		was, is  map[string]any
		org      string
		platform bool
	}{
		{enrollment, spec(`{"owners":["a"]}`), spec(`{"owners":["b"]}`), "acme", false},
		{enrollment, spec(`{"owners":["a"]}`), spec(`{"owners":["b"],"quota":{"cpu":"99"}}`), "acme", true},
		{enrollment, nil, spec(`{"owners":["b"]}`), "acme", true},
		{enrollment, spec(`{}`), nil, "acme", true},
		{pool, spec(`{"dedicatedTo":"acme","image":"a"}`), spec(`{"dedicatedTo":"acme","image":"b"}`), "acme", false},
		{pool, spec(`{"dedicatedTo":"acme","image":"a"}`), spec(`{"dedicatedTo":"globex","image":"a"}`), "", true},
		{pool, nil, spec(`{"dedicatedTo":"acme"}`), "acme", true},
		{pool, spec(`{"image":"a"}`), spec(`{"image":"b"}`), "", true},
		{Ref{"RunnerForge", "github"}, spec(`{}`), spec(`{"url":"x"}`), "", true},
	} {
		if org, platform := Owner(x.ref, x.was, x.is); org != x.org || platform != x.platform {
			t.Errorf("%s from %v to %v: %q, %v", x.ref, x.was, x.is, org, platform)
		}
	}
	switch {
	case !ContainsSpec(spec(`{"a":{"b":1},"c":["x"]}`), spec(`{"a":{"b":1,"default":true},"c":["x"],"d":2}`)):
		t.Error("the live object is read incorrectly: ContainsSpec(spec(`{\"a\":{\"b\":1},\"c\":[\"x\"]}`), spec(`{\"a\":{\"b\":1,\"default\":true},\"c\":[\"x\"],\"d\":2}`)) is false")
	case ContainsSpec(spec(`{"a":{"b":1}}`), spec(`{"a":{"b":2}}`)):
		t.Error("the live object is read incorrectly: ContainsSpec(spec(`{\"a\":{\"b\":1}}`), spec(`{\"a\":{\"b\":2}}`)) is true")
	case ContainsSpec(spec(`{"c":["x"]}`), spec(`{"c":["x","y"]}`)):
		t.Error("the live object is read incorrectly: ContainsSpec(spec(`{\"c\":[\"x\"]}`), spec(`{\"c\":[\"x\",\"y\"]}`)) is true")
	}
}

// PL-06: the shown diff does not belong to a commit from outside.
func TestPL06_TheDiffIsOfOneCommit(t *testing.T) {
	c := OpenChange(Change{Head: "a1", Proposer: "amy@acme.dev"}, time.Unix(0, 0))
	if c.DiffOf != "a1" {
		t.Errorf("the diff is of %q", c.DiffOf)
	}
	if c = c.Amend("amy@acme.dev", Edit{Remove: true}, "b2"); c.DiffOf != "b2" || c.Head != "b2" {
		t.Errorf("%q, %q", c.DiffOf, c.Head)
	}
	if c = c.Observe(Request{Head: "c3", Open: true, Authors: []string{"eve"}}); c.DiffOf != "b2" || c.Head != "c3" {
		t.Errorf("a person's commit is taken for Tailplane's: %q, %q", c.DiffOf, c.Head)
	}
}

package document

import (
	"strings"
	"testing"
)

// The epoch rule of section 7, change by change.
func TestFollows(t *testing.T) {
	base := example(t)
	for _, tt := range []struct {
		why  string
		edit [][2]string
		want string // in the error; "": it may follow
	}{
		{"nothing", nil, ""},
		{"an earlier epoch", [][2]string{{"epoch: 7", "epoch: 6"}}, "before 7"},
		{"a larger epoch", [][2]string{{"epoch: 7", "epoch: 8"}, {"slot: 1", "slot: 5"}}, ""},
		{"a slot", [][2]string{{"slot: 1", "slot: 5"}}, "cluster east moved from slot 1 to 5; raise epoch to 8"},
		{"another uid", [][2]string{{"5d0f2c1e", "6d0f2c1e"}}, "another uid"},
		{"a strategy", [][2]string{{"strategy: hash", "strategy: weighted"}}, ""},
		{"a limit", [][2]string{{"qps: 50", "qps: 60"}}, ""},
		{"a place", [][2]string{{`"tier in (gold)"`, `"tier in (silver)"`}}, ""},
		{"a namespace more", [][2]string{{`namespaces: [production, "prod-*"]`, `namespaces: [production, "prod-*", more]`}}, "rule production matches something else"},
		{"a namespace less", [][2]string{{`namespaces: [production, "prod-*"]`, `namespaces: [production]`}}, "rule production matches something else"},
		{"another target", [][2]string{{"target: {cluster: east}", "target: {cluster: west}"}}, "rule production has another target"},
		{"a member more", [][2]string{{"members: [east, west]", "members: [here, east, west]"}}, ""},
		{"another order of members", [][2]string{{"members: [east, west]", "members: [west, east]"}}, "another order"},
		{"another policy", [][2]string{{"onConflict: reject", "onConflict: prefer"}}, "conflicts"},
		{"allNamespaces", [][2]string{{"allNamespaces: union", "allNamespaces: home"}}, "allNamespaces"},
	} {
		text := base
		for _, e := range tt.edit {
			text = change(t, text, e[0], e[1])
		}
		old, _, err := Parse([]byte(base))
		if err != nil {
			t.Fatal(err)
		}
		next, _, err := Parse([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", tt.why, err)
			continue
		}
		switch err := Follows(old, next); {
		case (err == nil) != (tt.want == ""), err != nil && !strings.Contains(err.Error(), tt.want):
			t.Errorf("%s: %v, want %q", tt.why, err, tt.want)
		}
	}
	if err := Follows(Default(), Default()); err != nil {
		t.Error(err)
	}
}

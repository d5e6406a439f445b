package config

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated part of docs/reference/adapter-config.md")

const (
	page  = "../../../docs/reference/adapter-config.md"
	begin = "<!-- generated: go test ./internal/multicluster/config -run Reference -update -->\n```text\n"
	end   = "```\n<!-- end -->\n"
)

// levels lists the mappings of a configuration: the prefix of their fields in the reference, and a change
// that adds an unknown field.
var levels = []struct{ prefix, old, new string }{
	{"", "epoch: 7", "epoch: 7\nzzz: 1"},
	{"clusters[].", "slot: 0,", "slot: 0, zzz: 1,"},
	{"clusters[].credentials.", "{secret: east}", "{secret: east, zzz: 1}"},
	{"clusters[].limits.", "{qps: 50,", "{zzz: 1, qps: 50,"},
	{"clusters[].health.", "{path: /readyz,", "{zzz: 1, path: /readyz,"},
	{"rules[].", "{name: elections-at-home,", "{name: elections-at-home, zzz: 1,"},
	{"rules[].match.", "{apiGroups: [coordination.k8s.io]}", "{apiGroups: [coordination.k8s.io], zzz: 1}"},
	{"rules[].target.", "{cluster: here}}", "{cluster: here, zzz: 1}}"},
	{"rules[].target.spread.", "strategy: hash", "zzz: 1\n      strategy: hash"},
	{"rules[].target.spread.place[].", "cluster: east}]", "cluster: east, zzz: 1}]"},
	{"rules[].target.spread.onUnavailable.", "{read: fail,", "{zzz: 1, read: fail,"},
	{"audit.", "{level: metadata}", "{level: metadata, zzz: 1}"},
	{"tracing.", "ratio: 0", "zzz: 1, ratio: 0"},
}

// knownFields returns the fields that the parser knows, from its error for an unknown field.
func knownFields(t *testing.T) (known []string) {
	t.Helper()
	for _, l := range levels {
		_, _, err := Parse([]byte(change(t, example(t), l.old, l.new)))
		if err == nil {
			t.Fatalf("%szzz is accepted", l.prefix)
		}
		_, list, ok := strings.Cut(err.Error(), `no field "zzz"; it has `)
		if !ok {
			t.Fatalf("the refusal of %szzz does not list the known fields: %v", l.prefix, err)
		}
		list, _, _ = strings.Cut(list, "\n")
		for _, f := range strings.Split(list, ", ") {
			known = append(known, l.prefix+f)
		}
	}
	return known
}

// defaults returns the defaults of the parser as the reference writes them.
func defaults(t *testing.T) map[string]string {
	t.Helper()
	d, _, err := Parse([]byte(change(t, change(t, example(t), "      strategy: hash\n      weights: {east: 70, west: 30}\n      ownerReferences: follow\n      onConflict: reject\n      onUnavailable: {read: fail, create: fail}\n      deleteCollection: refuse\n", ""),
		"allNamespaces: union\nimpersonation: refuse\nallowTokenRequest: false\naudit: {level: metadata}\ntracing: {endpoint: \"\", ratio: 0}\n", "")))
	if err != nil {
		t.Fatal(err)
	}
	c, s := d.Clusters[0], d.Rules[3].Target.Spread
	refuse := func(allowed bool, yes string) string {
		if allowed {
			return yes
		}
		return "refuse"
	}
	return map[string]string{
		"unmatched": string(d.Unmatched), "allNamespaces": d.AllNamespaces, "impersonation": refuse(d.Impersonation, "allow"),
		"allowTokenRequest": fmt.Sprint(d.AllowTokenRequest), "annotate": fmt.Sprint(d.Annotate), "audit.level": d.Audit.Level, "tracing.ratio": fmt.Sprint(d.Tracing.Ratio),
		"clusters[].allowLoopback": fmt.Sprint(c.AllowLoopback), "clusters[].inCluster": "false",
		"clusters[].health.path": c.Health.Path, "clusters[].health.interval": c.Health.Interval.String(), "clusters[].health.timeout": c.Health.Timeout.String(),
		"clusters[].health.failures": fmt.Sprint(c.Health.Failures), "clusters[].health.successes": fmt.Sprint(c.Health.Successes),
		"rules[].allowVerbSplit": fmt.Sprint(d.Rules[0].AllowVerbSplit), "rules[].target.ownerReferences": string(d.Rules[0].Target.OwnerReferences),
		"rules[].target.spread.strategy": string(s.Strategy), "rules[].target.spread.ownerReferences": string(s.OwnerReferences), "rules[].target.spread.onConflict": s.OnConflict,
		"rules[].target.spread.onUnavailable.read": s.Read, "rules[].target.spread.onUnavailable.create": s.Create, "rules[].target.spread.deleteCollection": refuse(s.DeleteAllCollection, "all"),
	}
}

var rowForm = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]*) \\|")

// TestReference checks that the reference lists exactly the fields that the parser knows, with their
// defaults, and every error message of the parser.
func TestReference(t *testing.T) {
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	documented := map[string]string{}
	for _, m := range rowForm.FindAllStringSubmatch(text, -1) {
		if _, twice := documented[m[1]]; twice {
			t.Errorf("%s occurs twice", m[1])
		}
		documented[m[1]] = strings.Trim(m[2], " `")
	}
	known := knownFields(t)
	for _, f := range known {
		if _, ok := documented[f]; !ok {
			t.Errorf("the reference lacks %s", f)
		}
	}
	filled := defaults(t)
	for f, def := range documented {
		if !slices.Contains(known, f) {
			t.Errorf("the reference has %s, which the reader does not know", f)
		}
		if def != "" && def != "required" && filled[f] != def {
			t.Errorf("the default of %s is %q in the reference, and is %q", f, def, filled[f])
		}
		if def == "" && filled[f] != "" {
			t.Errorf("the default of %s is %q, and not in the reference", f, filled[f])
		}
	}

	var lines []string
	for _, c := range refused {
		_, _, err := Parse([]byte(change(t, example(t), c.change[0], c.change[1])))
		invalid, ok := errors.AsType[*InvalidError](err)
		if !ok {
			continue // TestRefused reports it
		}
		for _, f := range invalid.Diagnostics {
			if line, _, _ := strings.Cut(f.Message, "; it has "); !slices.Contains(lines, line) {
				lines = append(lines, line)
			}
		}
	}
	slices.Sort(lines)
	before, rest, ok := strings.Cut(text, begin)
	was, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatal("the reference has no generated part")
	}
	is := strings.Join(lines, "\n") + "\n"
	if was == is {
		return
	}
	if !*update {
		t.Fatal("the refusals in the reference do not match the reader; run with -update")
	}
	if err := os.WriteFile(page, []byte(before+begin+is+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

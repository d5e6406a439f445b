package policy

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseRecording(t *testing.T) {
	for _, x := range []struct {
		names    []string
		required bool
		want     Recording
		text     string
		err      string
	}{
		{nil, true, Recording{}, "nothing", ""},
		{[]string{"exec"}, true, Recording{Exec: Required}, "exec (required)", ""},
		{[]string{"portForward", "exec", "attach"}, false, Recording{BestEffort, BestEffort, BestEffort}, "exec (if possible), attach (if possible), portForward (if possible)", ""},
		{[]string{"Exec"}, true, Recording{}, "nothing", `"Exec" is not exec, attach or portForward`},
		{[]string{"exec", "attach", "exec"}, true, Recording{}, "nothing", `"exec" is listed twice`},
	} {
		got, err := ParseRecording(x.names, x.required)
		if diff := cmp.Diff(x.want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", x.names, diff)
		}
		if got.String() != x.text {
			t.Errorf("%v: text %q, want %q", x.names, got, x.text)
		}
		if text := errorText(err); text != x.err {
			t.Errorf("%v: error %q, want %q", x.names, text, x.err)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// PRX-14: of grant, destination and settings the stricter record wins, in any order.
func TestPRX14_StricterRecord(t *testing.T) {
	var all []Recording
	for a := range Required + 1 {
		for b := range Required + 1 {
			for c := range Required + 1 {
				all = append(all, Recording{a, b, c})
			}
		}
	}
	for _, a := range all {
		if got := a.Stricter(Recording{}); got != a {
			t.Errorf("%v with nothing is %v", a, got)
		}
		for _, b := range all {
			ab := a.Stricter(b)
			if ba := b.Stricter(a); ab != ba {
				t.Errorf("%v and %v: %v in one order, %v in the other", a, b, ab, ba)
			}
			if got := ab.Stricter(a); got != ab {
				t.Errorf("%v and %v are %v; with the first again %v", a, b, ab, got)
			}
			if lost := ab.Exec < a.Exec || ab.Attach < a.Attach || ab.PortForward < a.PortForward; lost {
				t.Errorf("%v and %v are %v, which is weaker", a, b, ab)
			}
			for _, c := range all {
				if x, y := ab.Stricter(c), a.Stricter(b.Stricter(c)); x != y {
					t.Errorf("%v, %v and %v: %v or %v", a, b, c, x, y)
				}
			}
		}
	}
}

// A verdict is readable as sentences and as JSON, and its JSON decodes to the same verdict.
func TestVerdictText(t *testing.T) {
	for _, x := range []struct {
		why  string
		v    Verdict
		text string
		json string
	}{
		{"nothing", Verdict{}, "No rule of the policy refuses the request.", `{}`},
		{"conditions", Verdict{Matched: []string{"a", "b"}, Record: Recording{Exec: Required, PortForward: BestEffort}, Warnings: []Warning{{"b", "this is production"}}},
			"No rule of the policy refuses the request.\nMatching rules: a, b.\nRecorded: exec (required), portForward (if possible).\nThe rule \"b\" warns: this is production",
			`{"warnings":[{"rule":"b","text":"this is production"}],"record":{"exec":"required","attach":"off","portForward":"bestEffort"},"matched":["a","b"]}`},
		{"a refusal", mustCompile(t, Rule{Name: "no-secrets", When: "true", Deny: "Secrets stay here."}).Judge(Input{}),
			`The rule "no-secrets" refuses the request: Secrets stay here.`,
			`{"refusal":{"rule":"no-secrets","kind":"denied","message":"Secrets stay here."},"matched":["no-secrets"]}`},
		{"a failure", mustCompile(t, Rule{Name: "first", When: `caller.tags[0] == ""`, Deny: "no"}).Judge(Input{}),
			"The rule \"first\" refuses the request: The rule \"first\" of the access proxy's policy failed for this request.\nThe error is: index out of bounds: 0\nAsk an administrator of the cluster to correct the rule.",
			`{"refusal":{"rule":"first","kind":"failed","message":"The rule \"first\" of the access proxy's policy failed for this request.",` +
				`"advice":"Ask an administrator of the cluster to correct the rule.","detail":"index out of bounds: 0"}}`},
	} {
		if diff := cmp.Diff(x.text, x.v.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.why, diff)
		}
		b, err := json.Marshal(x.v)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(x.json, string(b)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.why, diff)
		}
		var again Verdict
		if err := json.Unmarshal(b, &again); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(x.v, again); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.why, diff)
		}
	}
}

package policy

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The examples of the reference compile, and its tables agree with the code.
func TestReferencePage(t *testing.T) {
	b, err := os.ReadFile("../../../docs/access-proxy-policy.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page, -1)
	if len(examples) < 3 {
		t.Errorf("%d examples, want 3 or more", len(examples))
	}
	for _, x := range examples {
		var file struct{ Policy struct{ Rules []Rule } }
		d := yaml.NewDecoder(strings.NewReader(x[1]))
		d.KnownFields(true)
		if err := d.Decode(&file); err != nil {
			t.Errorf("%v in\n%s", err, x[1])
		}
		if _, err := Compile(file.Policy.Rules); err != nil {
			t.Errorf("%v in\n%s", err, x[1])
		}
	}
	for _, v := range table {
		row := fmt.Sprintf("| `%s` | %d |", v.name, v.size)
		if v.list > 0 {
			row = fmt.Sprintf("| `%s` | %d × %d |", v.name, v.list, v.size)
		}
		if !strings.Contains(page, row) {
			t.Errorf("the page lacks the row %s", row)
		}
	}
	c, err := newCompiler()
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `(.*)` \\| ([0-9]+|refused) \\|$").FindAllStringSubmatch(page, -1)
	if len(rows) != 5 {
		t.Errorf("%d rows with costs, want 5", len(rows))
	}
	for _, x := range rows {
		a, issues := c.env.Compile(strings.ReplaceAll(x[1], `\|`, "|"))
		if len(issues.Errors()) > 0 {
			t.Errorf("%s: %v", x[1], issues.Err())
			continue
		}
		estimate, err := c.env.EstimateCost(a, sizes{})
		if err != nil {
			t.Errorf("%s: %v", x[1], err)
		}
		got := fmt.Sprint(estimate.Max)
		if estimate.Max > MaxCost {
			got = "refused"
		}
		if got != x[2] {
			t.Errorf("%s costs %s, and the page says %s", x[1], got, x[2])
		}
	}
}

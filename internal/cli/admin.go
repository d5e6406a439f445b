package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/tailscale/hujson"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

func (t *tka) admin() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "admin",
		Short:   "Prepare and check the tailnet's policy (for administrators)",
		Long:    "Commands for the administrators of a tailnet's policy and its clusters. None of them changes\nthe policy or a cluster.",
		Example: "  tka admin check-policy policy.hujson\n  tka admin import-rbac",
		Args:    arguments(0, 0, "a command"),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(t.checkPolicy(), t.importRBAC())
	return cmd
}

func (t *tka) checkPolicy() *cobra.Command {
	var cf checkPolicyFlags
	cmd := &cobra.Command{
		Use:   "check-policy FILE",
		Short: "Ask the servers of all clusters which rules of a policy they would refuse",
		Long: `Send the grants of a tailnet policy (HuJSON) to the servers of all clusters that the access
server knows, and print the rules that a server would refuse: an unknown field, a role that is
not on its list, a period out of its bounds. Servers of an older version refuse fields that
newer ones know. Run it in the pipeline of the policy's repository, before the policy is in
force. "-" reads the standard input.

If plane.url of the settings names the operator plane, it checks the rules of its own
capability, unless -l selects clusters.

You need a grant at each server, and a role at the plane. The exit code is 0 if all servers accept all rules, 3 if one
refuses a rule, and 5 if a server could not be asked.`,
		Example: "  tka admin check-policy policy.hujson\n  tka admin check-policy -l env=prod -o json policy.hujson",
		Args:    arguments(1, 1, "the file of a policy"),
		RunE:    func(cmd *cobra.Command, args []string) error { return t.doCheckPolicy(cmd.Context(), cf, args[0]) },
	}
	selectorFlag(cmd, &cf.selector, "ask only clusters")
	cmd.Flags().BoolVar(&cf.skip, "skip-unreachable", false, "exit with 0 also if a server could not be asked")
	return cmd
}

// checkPolicyFlags are the flags of admin check-policy.
type checkPolicyFlags struct {
	selector string
	skip     bool
}

// maxPolicy is the size of the largest policy file, in bytes. It is above Tailscale's own limit.
const maxPolicy = 4 << 20

// A policyFile is a tailnet policy.
type policyFile struct {
	grants []signin.PolicyGrant
	text   []byte
	root   hujson.Value
}

// readPolicy reads the policy file at path, or the standard input if path is "-".
func (t *tka) readPolicy(path string) (p policyFile, err error) {
	in := t.In
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return p, output.UsageErrorf("The policy cannot be read: %v", err)
		}
		defer f.Close()
		in = f
	}
	if p.text, err = io.ReadAll(io.LimitReader(in, maxPolicy+1)); err != nil {
		return p, output.UsageErrorf("The policy cannot be read: %v", err)
	}
	if len(p.text) > maxPolicy {
		return p, output.UsageErrorf("The policy %s has more than %d MiB", path, maxPolicy>>20)
	}
	return p, p.parse(path)
}

// parse reads the grants of the policy's text. name is for errors.
func (p *policyFile) parse(name string) (err error) {
	if p.root, err = hujson.Parse(p.text); err != nil {
		return output.UsageErrorf("%s is not HuJSON: %v", name, err)
	}
	plain, err := hujson.Standardize(slices.Clone(p.text))
	if err != nil {
		return output.UsageErrorf("%s is not HuJSON: %v", name, err)
	}
	var policy struct{ Grants []signin.PolicyGrant }
	if err := json.Unmarshal(plain, &policy); err != nil {
		return output.UsageErrorf("%s has grants that are not valid: %v", name, err).Try("The policy is HuJSON with a list of grants: https://tailscale.com/docs/reference/syntax/grants")
	}
	for i := range policy.Grants {
		if policy.Grants[i].Dst == nil {
			policy.Grants[i].Dst = []string{}
		}
	}
	p.grants = policy.Grants
	return nil
}

// line returns the line of a rule in the file, from 1; 0 if the file does not have the rule.
func (p *policyFile) line(grant int, capability string, rule int) int {
	key := strings.NewReplacer("~", "~0", "/", "~1").Replace(capability) // RFC 6901
	v := p.root.Find(fmt.Sprintf("/grants/%d/app/%s/%d", grant, key, rule))
	if v == nil {
		return 0
	}
	return 1 + bytes.Count(p.text[:v.StartOffset], []byte("\n"))
}

// A policyFinding is a rule of the policy that a server would refuse.
type policyFinding struct {
	Grant      int    `json:"grant"` // index in the policy
	Capability string `json:"capability"`
	Rule       int    `json:"rule"` // index in the grant's rules of the capability
	Line       int    `json:"line"` // in the file, from 1
	Message    string `json:"message"`
}

// A clusterPolicy is a server's opinion of a policy.
type clusterPolicy struct {
	meta
	Cluster  string          `json:"cluster"` // "": the operator plane
	Server   string          `json:"server"`
	Version  string          `json:"version,omitempty"`
	Checked  int             `json:"checked"` // rules that are for this server
	Findings []policyFinding `json:"findings"`
	Error    string          `json:"error,omitempty"` // why the server could not be asked
}

func (t *tka) doCheckPolicy(ctx context.Context, cf checkPolicyFlags, path string) error {
	policy, err := t.readPolicy(path)
	if err != nil {
		return err
	}
	selected, err := parseSelector(cf.selector)
	if err != nil {
		return err
	}
	_, d, err := t.askDirectory(ctx)
	if err != nil {
		return err
	}
	shown, _ := d.Filter(false, selected)
	if len(shown) == 0 {
		return output.Errorf(output.ExitFailed, "No cluster matches, so no server checked the policy").Try("tka clusters")
	}
	items := t.checkEntries(ctx, d.Server, shown, policy)
	if cf.selector == "" {
		items = append(items, t.checkPlane(ctx, policy)...)
	}
	code := output.ExitOK
	for _, it := range items {
		switch {
		case len(it.Findings) > 0:
			code = output.ExitRefused
		case it.Error != "" && !cf.skip && code == output.ExitOK:
			code = output.ExitUnreachable
		}
	}
	names := mapped(items, func(it clusterPolicy) string {
		if it.Cluster == "" {
			return "plane"
		}
		return "cluster/" + it.Cluster
	})
	return t.printResult(result{object: newList("PolicyCheckList", items), names: names, code: code, table: func(bool) { t.printPolicy(path, items) }})
}

// checkEntries asks the servers of the clusters about the policy, in parallel.
func (t *tka) checkEntries(ctx context.Context, source string, shown []client.DirectoryEntry, policy policyFile) []clusterPolicy {
	var items []clusterPolicy
	var usable []client.DirectoryEntry
	for _, e := range shown {
		if e.Exclusion != nil {
			items = append(items, clusterPolicy{meta: newMeta("PolicyCheck"), Cluster: e.Name, Server: e.URL, Findings: []policyFinding{}, Error: e.Exclusion.Reason})
			continue
		}
		usable = append(usable, e)
	}
	for _, o := range forEntries(ctx, t, source, usable, func(ctx context.Context, l *client.Client) (clusterPolicy, error) {
		it := clusterPolicy{Version: l.Info.Version}
		err := policy.checkAt(&it, func(req signin.PolicyRequest) (signin.PolicyCheck, error) {
			return client.Call(ctx, l, signin.CheckPolicy, req)
		})
		return it, err
	}) {
		it := o.value
		it.meta, it.Cluster, it.Server, it.Findings = newMeta("PolicyCheck"), o.cluster, o.server, nonNil(it.Findings)
		it.setError(o.err)
		items = append(items, it)
	}
	slices.SortFunc(items, func(a, b clusterPolicy) int { return cmp.Compare(a.Cluster, b.Cluster) })
	return items
}

// setError stores why the server could not be asked, if err is not nil.
func (it *clusterPolicy) setError(err error) {
	switch {
	case problem.CodeOf(err) == problem.NotFound:
		it.Error = "its version, " + cmp.Or(it.Version, "unknown") + ", cannot check a policy"
	case err != nil:
		it.Error = errorMessage(err)
	}
}

// checkPlane asks the operator plane about the policy, if plane.url of the settings names one.
func (t *tka) checkPlane(ctx context.Context, policy policyFile) []clusterPolicy {
	set, err := t.settings()
	if err != nil || set.PlaneURL == "" {
		return nil // invalid settings were an error before
	}
	it := clusterPolicy{meta: newMeta("PolicyCheck"), Server: dialpolicy.RedactURL(set.PlaneURL)}
	c, err := t.planeClient(mcpFlags{})
	if err == nil {
		err = policy.checkAt(&it, func(req signin.PolicyRequest) (signin.PolicyCheck, error) {
			var got plane.Envelope[signin.PolicyCheck]
			err := c.Do(ctx, plane.CheckPolicy.Pattern, 0, req, &got)
			return got.Data, err
		})
	}
	it.Findings = nonNil(it.Findings)
	it.setError(err)
	return []clusterPolicy{it}
}

// checkAt asks one server about the policy, with as many requests as it needs.
func (p *policyFile) checkAt(it *clusterPolicy, call func(signin.PolicyRequest) (signin.PolicyCheck, error)) error {
	for first := 0; ; {
		n := batch(p.grants[first:])
		got, err := call(signin.PolicyRequest{Grants: p.grants[first : first+n]})
		if err != nil {
			return err
		}
		it.Checked += got.Checked
		for _, found := range got.Problems {
			grant := first + found.Grant
			it.Findings = append(it.Findings, policyFinding{grant, got.Capability, found.Rule, p.line(grant, got.Capability, found.Rule), found.Message})
		}
		if first += n; first >= len(p.grants) {
			return nil
		}
	}
}

// maxPolicyBatch is the size of the grants of one request, in bytes. It is below the server's limit for a request, 16 KiB.
const maxPolicyBatch = 12 << 10

// batch returns how many of the grants fit in one request; at least one, if there is one.
func batch(grants []signin.PolicyGrant) int {
	size := 0
	for i, g := range grants {
		b, err := json.Marshal(g)
		if size += len(b); i > 0 && (err != nil || size > maxPolicyBatch || i == signin.MaxPolicyGrants) {
			return i
		}
	}
	return len(grants)
}

// title returns the name of the cluster, or what stands for it.
func (it clusterPolicy) title() string { return cmp.Or(it.Cluster, "(operator plane)") }

// printPolicy prints each finding once, with the clusters whose servers report it.
func (t *tka) printPolicy(path string, items []clusterPolicy) {
	for _, it := range items {
		for _, f := range it.Findings {
			t.printLine("%s:%d: %s refuses rule %d of grant %d: %s", path, f.Line, it.title(), f.Rule+1, f.Grant+1, f.Message)
		}
	}
	var rows [][]output.Cell
	for _, it := range items {
		state := output.Colored(output.Green, "accepts")
		switch {
		case it.Error != "":
			state = output.Colored(output.Yellow, "not asked")
		case len(it.Findings) > 0:
			state = output.Colored(output.Red, "refuses "+plural(int64(len(it.Findings)), "rule", "rules"))
		}
		rows = append(rows, append(output.Row(it.title(), it.Version, fmt.Sprint(it.Checked)), state, output.Cell{Text: it.Error}))
	}
	t.writeTable(false, []string{"CLUSTER", "VERSION", "RULES", "STATE", ""}, nil, rows)
}

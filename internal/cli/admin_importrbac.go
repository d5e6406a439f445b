package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// importFlags are the flags of admin import-rbac.
type importFlags struct {
	client.Kubectl
	users      bool
	period     time.Duration
	dst        string
	capability string
}

func (t *tka) importRBAC() *cobra.Command {
	var f importFlags
	cmd := &cobra.Command{
		Use:   "import-rbac",
		Short: "Print grants for the tailnet policy from the role bindings of a cluster",
		Long: `Read the RoleBindings and ClusterRoleBindings of a cluster, and print grants for the tailnet
policy that give groups the same roles in the same namespaces. The command runs kubectl with
your own kubeconfig: you need the right to list the bindings of all namespaces there. It
changes nothing.

A group NAME of Kubernetes becomes group:NAME of the policy; Kubernetes does not know its
members. What has no equivalent is left out and printed on the standard error: a namespaced
Role, a built-in group, and a user unless --users is given.`,
		Example: "  tka admin import-rbac > grants.hujson\n  tka admin import-rbac --context admin@prod-eu --users --period 4h -o json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doImportRBAC(cmd.Context(), f) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.Context, "context", "", "context of the kubeconfig (default: the current one)")
	fs.BoolVar(&f.users, "users", false, "import also users whose name is a login with an @")
	fs.DurationVar(&f.period, "period", 8*time.Hour, "period of the grants")
	fs.StringVar(&f.dst, "dst", "tag:tailplane", "destination of the grants: the tag of the access servers")
	fs.StringVar(&f.capability, "capability", "tailplane.dev/cap/access", "capability of the access servers")
	return cmd
}

// An importedGrant is one grant of a tailnet policy.
type importedGrant struct {
	Src []string                     `json:"src"`
	Dst []string                     `json:"dst"`
	IP  []string                     `json:"ip"`
	App map[string][]json.RawMessage `json:"app"`

	from []string // the bindings
}

// A leftOut is something that has no equivalent in a grant.
type leftOut struct {
	Binding string `json:"binding"`
	Subject string `json:"subject,omitempty"`
	Reason  string `json:"reason"`
}

// An importResult is the output of admin import-rbac.
type importResult struct {
	meta
	Grants  []importedGrant `json:"grants"`
	Groups  []string        `json:"groups"` // groups that the policy must define
	Roles   []string        `json:"roles"`  // roles that signin.roles must list
	LeftOut []leftOut       `json:"leftOut"`
	Notes   []string        `json:"notes"`
}

func (t *tka) doImportRBAC(ctx context.Context, f importFlags) error {
	bindings, err := t.kubectl(f.Kubectl).RoleBindings(ctx)
	if err != nil {
		return err
	}
	res, err := importBindings(bindings, f)
	if err != nil {
		return err
	}
	for _, l := range res.LeftOut {
		t.warn("left out: %s%s: %s", l.Binding, quoteSubject(l.Subject), l.Reason)
	}
	for _, note := range res.Notes {
		t.hint("%s", note)
	}
	if len(res.Groups) > 0 {
		t.hint("Define these groups in the policy: %s", strings.Join(res.Groups, ", "))
	}
	if len(res.Roles) > 0 {
		t.hint("List these roles in signin.roles of the server: %s", strings.Join(res.Roles, ", "))
	}
	return t.printResult(result{object: res, names: mapped(res.Grants, func(g importedGrant) string { return "grant/" + strings.Join(g.Src, ",") }),
		table: func(bool) {
			for line := range strings.SplitSeq(formatGrants(res.Grants), "\n") {
				t.printLine("%s", line)
			}
		}})
}

func quoteSubject(subject string) string {
	if subject == "" {
		return ""
	}
	return fmt.Sprintf(" for %q", subject)
}

// groupForm is the form of a group's name in a tailnet policy, without the prefix.
var groupForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// reservedNamespaces are the default namespaces of Tailplane. The server refuses rules that name them.
var reservedNamespaces = []string{client.SigninNamespace, "tailplane-system"}

// rolePlaces are the namespaces of each role of one subject. "" is the whole cluster.
type rolePlaces map[access.Role]map[string]bool

// An importer collects the roles of each subject.
type importer struct {
	importFlags
	res   importResult
	roles map[string]rolePlaces      // by source of a grant
	from  map[string]map[string]bool // bindings by source
}

// importBindings returns the grants that give the subjects of the bindings the same.
func importBindings(bindings []client.RoleBinding, f importFlags) (importResult, error) {
	if f.period < access.MinPeriod {
		return importResult{}, output.UsageErrorf("--period must be at least %v (got %v)", access.MinPeriod, f.period)
	}
	im := importer{importFlags: f, roles: map[string]rolePlaces{}, from: map[string]map[string]bool{}}
	im.res = importResult{meta: newMeta("ImportedGrants"), Grants: []importedGrant{}, Groups: []string{}, Roles: []string{}, LeftOut: []leftOut{}, Notes: []string{}}
	slices.SortFunc(bindings, func(a, b client.RoleBinding) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Metadata.Namespace, b.Metadata.Namespace), cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	for _, b := range bindings {
		im.add(b)
	}
	return im.res, im.write()
}

// add collects the subjects of one binding.
func (im *importer) add(b client.RoleBinding) {
	name := b.Kind + " " + strings.TrimPrefix(b.Metadata.Namespace+"/"+b.Metadata.Name, "/")
	name = fmt.Sprintf("%.300q", name)
	name = name[1 : len(name)-1] // names of bindings may contain any character
	for _, s := range b.Subjects {
		if s.Kind == "ServiceAccount" {
			continue // not a person
		}
		source, reason := im.source(s)
		if reason == "" {
			reason = unimportable(b)
		}
		if reason != "" {
			if strings.HasPrefix(s.Name, "system:") && strings.HasPrefix(b.RoleRef.Name, "system:") {
				continue // Kubernetes' own
			}
			im.res.LeftOut = append(im.res.LeftOut, leftOut{name, s.Name, reason})
			continue
		}
		if im.roles[source] == nil {
			im.roles[source], im.from[source] = rolePlaces{}, map[string]bool{}
		}
		role := access.Role(b.RoleRef.Name)
		if im.roles[source][role] == nil {
			im.roles[source][role] = map[string]bool{}
		}
		im.roles[source][role][b.Metadata.Namespace] = true
		im.from[source][name] = true
	}
}

// source returns the source of a grant for a subject, or why there is none.
func (im *importer) source(s client.RoleSubject) (source, reason string) {
	switch {
	case strings.HasPrefix(s.Name, "system:"):
		return "", "it is built into Kubernetes"
	case s.Kind == "Group" && groupForm.MatchString(s.Name):
		return "group:" + s.Name, ""
	case s.Kind == "Group":
		return "", "a group of a tailnet policy cannot have this name"
	case s.Kind != "User":
		return "", fmt.Sprintf("the kind %q is unknown", s.Kind)
	case !im.users:
		return "", "it is a user; --users imports users"
	case !strings.Contains(s.Name, "@"):
		return "", "the name is not a login with an @"
	}
	if _, err := access.ParseLogin(s.Name); err != nil {
		return "", "the name is not a login of a tailnet"
	}
	return s.Name, ""
}

// unimportable returns why the role of a binding cannot be granted, or "".
func unimportable(b client.RoleBinding) string {
	switch {
	case b.RoleRef.Kind != "ClusterRole":
		return "it binds a namespaced Role, and Tailplane binds ClusterRoles only"
	case strings.HasPrefix(b.RoleRef.Name, "system:"):
		return "the role is built into Kubernetes"
	case slices.Contains(reservedNamespaces, b.Metadata.Namespace):
		return "the namespace is reserved for Tailplane"
	}
	if _, err := access.ParseRole(b.RoleRef.Name); err != nil {
		return "a grant cannot name the role"
	}
	return ""
}

// write writes the grants. Sources with the same roles share one.
func (im *importer) write() error {
	roles := map[access.Role]bool{}
	byRules := map[string]*importedGrant{}
	for _, source := range slices.Sorted(maps.Keys(im.roles)) {
		rules, err := im.rules(source)
		if err != nil {
			return err
		}
		if strings.HasPrefix(source, "group:") {
			im.res.Groups = append(im.res.Groups, source)
		}
		for role := range im.roles[source] {
			roles[role] = true
		}
		key := fmt.Sprintf("%s", rules)
		g := byRules[key]
		if g == nil {
			g = &importedGrant{Dst: []string{im.dst}, IP: []string{"tcp:443"}, App: map[string][]json.RawMessage{im.capability: rules}}
			byRules[key] = g
		}
		g.Src = append(g.Src, source)
		g.from = slices.Compact(slices.Sorted(slices.Values(append(g.from, slices.Collect(maps.Keys(im.from[source]))...))))
	}
	for _, g := range slices.SortedFunc(maps.Values(byRules), func(a, b *importedGrant) int { return cmp.Compare(a.Src[0], b.Src[0]) }) {
		im.res.Grants = append(im.res.Grants, *g)
	}
	for _, role := range slices.Sorted(maps.Keys(roles)) {
		im.res.Roles = append(im.res.Roles, string(role))
	}
	return nil
}

// rules returns the rules of a source: one, or several if one sign-in cannot have all roles.
func (im *importer) rules(source string) ([]json.RawMessage, error) {
	var parts []access.Binds
	for _, role := range slices.Sorted(maps.Keys(im.roles[source])) {
		places := im.roles[source][role]
		b := access.Bind{Role: role}
		if !places[""] {
			b.Namespaces = slices.Sorted(maps.Keys(places))
		}
		parts = appendBind(parts, b)
	}
	var rules []json.RawMessage
	for i, binds := range parts {
		name := ""
		if len(parts) > 1 {
			name = fmt.Sprintf("part-%d", i+1)
		}
		rule, err := ruleText(name, binds, im.period)
		if err != nil {
			return nil, err
		}
		if _, err := access.ParseGrant(rule); err != nil {
			return nil, output.Errorf(output.ExitFailed, "The rule for %s would be invalid: %v", source, err).Because(err)
		}
		rules = append(rules, rule)
	}
	if len(parts) > 1 {
		im.res.Notes = append(im.res.Notes, fmt.Sprintf("%s has too much for one rule, so it has %d. A sign-in has the roles of one: tka login --role part-1", source, len(parts)))
	}
	return rules, nil
}

// appendBind adds a role to the last part, or to a new part if the last one is full. It divides a
// role with too many namespaces.
func appendBind(parts []access.Binds, b access.Bind) []access.Binds {
	const perPart = 50 // the most namespaces of one rule
	for len(b.Namespaces) > perPart {
		parts = append(parts, access.Binds{{Role: b.Role, Namespaces: b.Namespaces[:perPart]}})
		b.Namespaces = b.Namespaces[perPart:]
	}
	if len(parts) > 0 {
		last := append(slices.Clone(parts[len(parts)-1]), b)
		if last.Validate() == nil && len(fmt.Sprint(last)) < maxRuleText {
			parts[len(parts)-1] = last
			return parts
		}
	}
	return append(parts, access.Binds{b})
}

// maxRuleText keeps a rule below the 4 KiB that a server accepts.
const maxRuleText = 3 << 10

// ruleText returns a rule, in the short form if possible.
func ruleText(name string, binds access.Binds, period time.Duration) (json.RawMessage, error) {
	type bind struct {
		Role       access.Role `json:"role"`
		Namespaces []string    `json:"namespaces,omitempty"`
	}
	rule := struct {
		Name string `json:"name,omitempty"`
		*bind
		Bind   []bind           `json:"bind,omitempty"`
		Period httpapi.Duration `json:"period"`
	}{Name: name, Period: httpapi.Duration(period)}
	if binds.IsSimple() {
		rule.bind = &bind{binds[0].Role, binds[0].Namespaces}
	} else {
		for _, b := range binds {
			rule.Bind = append(rule.Bind, bind{b.Role, b.Namespaces})
		}
	}
	return json.Marshal(rule)
}

// formatGrants returns the grants as a part of a tailnet policy in HuJSON.
func formatGrants(grants []importedGrant) string {
	var s strings.Builder
	text := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			return "null" // strings always have a JSON form
		}
		return string(b)
	}
	s.WriteString("{\n  \"grants\": [\n")
	for _, g := range grants {
		fmt.Fprintf(&s, "    // from %s\n", strings.Join(g.from, ", "))
		fmt.Fprintf(&s, "    {\"src\": %s, \"dst\": %s, \"ip\": %s,\n", text(g.Src), text(g.Dst), text(g.IP))
		for capability, rules := range g.App {
			fmt.Fprintf(&s, "     \"app\": {%s: [\n", text(capability))
			for _, rule := range rules {
				fmt.Fprintf(&s, "       %s,\n", rule)
			}
			s.WriteString("     ]}},\n")
		}
	}
	s.WriteString("  ],\n}")
	return s.String()
}

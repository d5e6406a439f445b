package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/doctor"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/safefile"
	"github.com/tailplane/tailplane/internal/util/secret"
)

func (t *tka) doctor() *cobra.Command {
	var cluster string
	return t.clusterFlag(&cobra.Command{
		Use:   "doctor",
		Short: "Diagnose problems with signing in",
		Long: `Check each step of a sign-in, and print what to do about each problem: settings, tailnet,
server and its proof, clock, grant, sign-in, API server or access proxy, rights, kubeconfig,
plugin, and the other clusters that the server knows. The command changes nothing, except that it remembers
the key of a new server.

If a check fails, the exit code is 1. It is 3 or 5 if the first failure is a refusal or
something unreachable.`,
		Example: "  tka doctor\n  tka doctor --cluster prod-eu -o json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doDoctor(cmd.Context(), cluster) },
	}, &cluster, "cluster; this machine or its server must know it", t.clusterNames)
}

// doctorInfo is the output of doctor.
type doctorInfo struct {
	meta
	Server   string          `json:"server"`
	Cluster  string          `json:"cluster"`
	State    doctor.Status   `json:"state"` // of the worst result
	Findings []doctor.Result `json:"findings"`
}

func (t *tka) doDoctor(ctx context.Context, cluster string) error {
	facts, code := t.gather(ctx, cluster)
	all := doctor.Evaluate(facts)
	if facts.SettingsFailure.Message != "" { // the output format is in the settings, which are invalid
		t.output = cmp.Or(t.output, output.Table)
	}
	info := doctorInfo{newMeta("Checkup"), facts.Server, facts.Cluster, doctor.Worst(all), all}
	names := mapped(all, func(f doctor.Result) string { return f.Name + "/" + string(f.Status) })
	if info.State != doctor.Fail {
		code = output.ExitOK
	}
	return t.printResult(result{object: info, names: names, code: code, table: func(bool) { t.printChecks(all) }})
}

func (t *tka) printChecks(all []doctor.Result) {
	colors := map[doctor.Status]output.Color{doctor.OK: output.Green, doctor.Warn: output.Yellow, doctor.Fail: output.Red}
	for _, f := range all {
		fmt.Fprintf(t.Out, "%s %-13s %s\n", t.paint(t.Out, colors[f.Status], fmt.Sprintf("%-7s", f.Status)), f.Name, output.Escape(f.Message))
		for _, line := range f.Advice[:min(len(f.Advice), output.MaxAdvice)] {
			fmt.Fprintf(t.Out, "%-21s try: %s\n", "", output.Escape(line))
		}
	}
}

// gather collects all facts. code is the exit code for a failed check: that of the first failure.
func (t *tka) gather(ctx context.Context, cluster string) (f doctor.Facts, code int) {
	note := func(err error) doctor.Failure {
		ft := output.AsError(err)
		code = cmp.Or(code, ft.Code)
		return doctor.Failure{Message: ft.Message, Advice: ft.Advice}
	}
	defer func() { code = cmp.Or(code, output.ExitFailed) }()
	f = doctor.Facts{Now: t.Now(), ClientVersion: t.Build.Version, Tokens: doctor.OnDisk}
	set, err := t.settings()
	if err != nil {
		f.SettingsFailure = note(err)
		f.TailnetFailure.Message = "It was not checked"
		return f, code
	}
	if filepath.IsAbs(t.Getenv("XDG_RUNTIME_DIR")) {
		f.Tokens = doctor.InMemory
	}
	if set.CredentialCache == config.CacheNone {
		f.Tokens = doctor.NotStored
	}
	f.Tailnet, f.TailnetFailure.Message = t.tailnetStatus(ctx)
	f.Kuberc = t.kuberc()
	l, denied, err := t.connectOrDenied(ctx, cluster)
	if l != nil {
		f.Server = l.Base
		if at, err := http.ParseTime(l.Last.Header.Get("Date")); err == nil {
			f.Now, f.ServerTime = t.Now(), at
		}
	}
	if err != nil {
		f.ServerFailure = note(err)
		return f, code
	}
	f.Cluster, f.Key, f.FirstContact, f.ServerVersion = l.Info.Name, l.Key.String(), l.FirstContact, l.Info.Version
	who, err := client.Call(ctx, l, signin.GetWhoami, signin.WhoamiRequest{Session: t.selection.session})
	if err != nil {
		f.WhoamiFailure = note(err)
	} else if f.Whoami = &who; !who.Decision.Allowed {
		code = cmp.Or(code, output.ExitRefused)
	}
	if f.Whoami != nil {
		f.Policy = doctor.RuleProblems(f.Cluster, f.ServerVersion, *f.Whoami)
	}
	if denied != nil {
		return f, code
	}
	t.gatherAPI(ctx, l, &f, note)
	t.gatherKubeconfig(l, set, &f, note)
	t.gatherDiscovery(ctx, l, &f)
	return f, code
}

// gatherDiscovery fetches the clusters that the server knows. Their problems do not prevent signing in to this server's cluster.
func (t *tka) gatherDiscovery(ctx context.Context, l *client.Client, f *doctor.Facts) {
	d, err := t.fetchDirectory(ctx, l)
	if err != nil {
		ft := output.AsError(err)
		f.DiscoveryFailure = doctor.Failure{Message: ft.Message, Advice: ft.Advice}
		return
	}
	f.Discovery = &doctor.Discovery{Unsupported: d.Unsupported, Isolated: d.Isolated, Refused: d.Refused}
	others := slices.DeleteFunc(slices.Clone(d.Entries), func(e client.DirectoryEntry) bool { return e.Self })
	outcomes, at := t.whoamiAt(ctx, d.Server, others)
	for i, o := range outcomes {
		if e := others[at[i]]; o.err != nil {
			f.Discovery.Silent = append(f.Discovery.Silent, e.Name)
		} else {
			f.Policy = append(f.Policy, doctor.RuleProblems(e.Name, e.Software, o.value)...)
		}
	}
	for _, e := range d.Entries {
		switch {
		case e.Self:
			f.Discovery.ListsItself = true
			continue
		case e.Exclusion == nil:
		case e.Conflict:
			f.Discovery.Conflicts = append(f.Discovery.Conflicts, e.Name)
		case !e.Verified:
			f.Discovery.Unverified = append(f.Discovery.Unverified, e.Name)
		case e.Exclusion.Label != "":
			f.Discovery.Elsewhere = append(f.Discovery.Elsewhere, e.Name)
		}
		f.Discovery.Others++
	}
}

// gatherAPI queries the API server as kubectl reaches it: directly, first anonymously and then with the token, or through the access proxy.
func (t *tka) gatherAPI(ctx context.Context, l *client.Client, f *doctor.Facts, note func(error) doctor.Failure) {
	session := t.selection.session
	mode, err := t.usedMode(l, session)
	if err != nil {
		mode, err = modeFor(l, "") // the kubeconfig's check reports an entry in another mode
	}
	if err != nil {
		f.APIFailure = note(err)
		return
	}
	f.Mode = mode
	signedIn := f.Whoami != nil && f.Whoami.Signin != nil && f.Whoami.Signin.State == signin.Ready
	if mode == signin.ModeProxy {
		t.gatherAccessProxy(ctx, l, f, signedIn, note)
	} else {
		t.gatherAPIServer(ctx, l, f, note)
	}
	if f.APIFailure.Message != "" || !signedIn {
		return
	}
	var api *client.KubeAPI
	g, err := l.Access(ctx, session, mode)
	if err == nil {
		api, err = client.NewKubeAPI(g.Server, g.CA, g.Token, t.tailscale)
	}
	if err == nil {
		f.RulesNamespace = cmp.Or(g.Namespace, "default")
		if f.Rules, err = api.CountRules(ctx, f.RulesNamespace); err != nil {
			err = apiError(g.Server, err)
		}
	}
	if err != nil {
		f.RulesFailure = note(err)
	}
}

// gatherAPIServer queries the API server anonymously.
func (t *tka) gatherAPIServer(ctx context.Context, l *client.Client, f *doctor.Facts, note func(error) doctor.Failure) {
	f.APIServer = l.Info.ServerURL
	f.Proxy, f.NoProxy = t.proxyOf(ctx, f.APIServer)
	api, err := client.NewKubeAPI(l.Info.ServerURL, l.Info.CAData, secret.Text{}, t.tailscale)
	if err == nil {
		f.APIVersion, err = api.Version(ctx)
		if _, answered := errors.AsType[*client.KubeAPIError](err); answered {
			err = nil
		}
	}
	if err != nil {
		f.APIFailure = note(apiError(l.Info.ServerURL, err))
	}
}

// gatherAccessProxy sends a request through the access proxy, as kubectl does. signedIn says that the proxy must not refuse it.
func (t *tka) gatherAccessProxy(ctx context.Context, l *client.Client, f *doctor.Facts, signedIn bool, note func(error) doctor.Failure) {
	g, err := l.ProxyKubeconfig(t.selection.session)
	if err != nil {
		f.APIFailure = note(err)
		return
	}
	f.APIServer, f.PrivateCA = g.Server, len(g.CA) > 0
	f.Proxy, f.NoProxy = t.proxyOf(ctx, g.Server)
	api, err := client.NewKubeAPI(g.Server, g.CA, g.Token, t.tailscale)
	if err == nil {
		f.APIVersion, err = api.Version(ctx)
	}
	if at, urlErr := url.Parse(g.Server); urlErr == nil { // after the request, so that Tailscale knows the path
		path := t.tailscale.PathTo(ctx, at.Hostname())
		f.Direct, f.Relay = path.Direct, path.Relay
	}
	answer, answered := errors.AsType[*client.KubeAPIError](err)
	switch {
	case err == nil, answered && answer.Status == http.StatusForbidden && !signedIn:
	case answered:
		f.APIFailure = note(output.Errorf(output.ExitRefused, "The access proxy %s refuses requests of this device: %v", g.Server, err).Because(err).
			Try("If the message names no command, ask an administrator of the cluster."))
	default:
		f.APIFailure = note(output.Errorf(output.ExitUnreachable, "The access proxy %s cannot be reached: %v", g.Server, err).Because(err).
			Try("The tailnet's policy must let this device reach two nodes on tcp:443: the access server and the access proxy.").
			Try("If the policy is right, ask an administrator whether the proxy runs."))
	}
}

// gatherKubeconfig checks the kubeconfig and the plugin that it names.
func (t *tka) gatherKubeconfig(l *client.Client, set *config.Settings, f *doctor.Facts, note func(error) doctor.Failure) {
	view, err := t.loadKubeconfig()
	if err == nil {
		_, err = t.readKubeconfigFiles()
	}
	if err != nil {
		f.KubeconfigFailure = note(err)
		return
	}
	name := signin.ContextName(set.Prefix, l.Info.Name, t.selection.session)
	entry, there := view.Entry(name)
	want := kubeconfig.Entry{Server: l.Info.ServerURL, CA: l.Info.CAData}
	if entry.Proxy {
		g, _ := l.ProxyKubeconfig(t.selection.session) // an error is that of the access proxy's check
		want.Server, want.CA = g.Server, g.CA
	}
	f.Kubeconfig = &doctor.Kubeconfig{Context: name, Exists: there, Current: view.Current() == name,
		Matches: entry.Server == want.Server && bytes.Equal(entry.CA, want.CA)}
	if mode := modeOf(entry); there && !slices.Contains(l.Info.AccessModes(), mode) {
		f.Kubeconfig.Outdated = mode
	}
	if paths, err := t.kubeconfigPaths(); err == nil {
		for _, p := range paths {
			if s := safefile.StaleLockFile(p); s != "" {
				f.Kubeconfig.StaleLock = s
			}
		}
	}
	if f.PluginCommand = entry.Command; there && !entry.Proxy {
		if path, err := exec.LookPath(entry.Command); err == nil {
			f.Plugin = path
		}
	}
}

// tailnetStatus returns what Tailscale reports about this machine, or why it reports nothing.
func (t *tka) tailnetStatus(ctx context.Context) (*doctor.Tailnet, string) {
	s, err := t.tailscale.Status(ctx)
	if err != nil {
		text := err.Error()
		return nil, strings.ToUpper(text[:1]) + text[1:]
	}
	return &doctor.Tailnet{State: s.State, Node: s.Name, KeyExpiry: s.KeyExpiry}, ""
}

// proxyOf returns the part of the environment's proxy that concerns kubectl: the proxy that it would use for the API server, and the value
// of $NO_PROXY with which it would not. line is "" if kubectl need not avoid the proxy.
func (t *tka) proxyOf(ctx context.Context, server string) (via, line string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server, nil)
	if err != nil {
		return "", ""
	}
	theirs, err := http.ProxyFromEnvironment(r)
	if theirs == nil || err != nil {
		return "", ""
	}
	via = theirs.Redacted()
	if ours, err := dialpolicy.Proxy(t.tailscale)(r); err != nil || ours != nil {
		return via, ""
	}
	s, _ := t.tailscale.Status(ctx) // it has answered
	list := strings.Split(cmp.Or(t.Getenv("NO_PROXY"), t.Getenv("no_proxy")), ",")
	list = append(list, dialpolicy.TailnetRanges()...)
	if s.Suffix != "" {
		list = append(list, "."+s.Suffix)
	}
	host := r.URL.Hostname()
	if addr, err := netip.ParseAddr(host); (err != nil || !dialpolicy.IsTailnetAddr(addr)) && !strings.HasSuffix(host, "."+s.Suffix) {
		list = append(list, host)
	}
	return via, strings.Trim(strings.Join(list, ","), ",")
}

// kuberc returns the plugin policy in kubectl's settings.
func (t *tka) kuberc() (k doctor.Kuberc) {
	path := t.Getenv("KUBERC")
	if path == "" {
		home, err := t.homeDir()
		if err != nil {
			return k
		}
		path = filepath.Join(home, ".kube", "kuberc")
	}
	text, err := os.ReadFile(path)
	if err != nil || path == "off" {
		return k
	}
	var file struct {
		Policy string `yaml:"credentialPluginPolicy"`
		List   []struct {
			Command string `yaml:"command"`
			Name    string `yaml:"name"` // the field's name in older versions
		} `yaml:"credentialPluginAllowlist"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return k // kubectl reports the error itself
	}
	k = doctor.Kuberc{File: path, Policy: file.Policy}
	plugin, err := exec.LookPath(t.pluginCommand())
	for _, e := range file.List {
		listed, listedErr := exec.LookPath(cmp.Or(e.Command, e.Name))
		k.Listed = k.Listed || err == nil && listedErr == nil && plugin == listed
	}
	return k
}

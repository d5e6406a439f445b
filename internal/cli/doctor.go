package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/cli/checkup"
	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/kubeapi"
	"github.com/tailplane/tailplane/internal/cli/link"
	"github.com/tailplane/tailplane/internal/cli/memory"
	"github.com/tailplane/tailplane/internal/cli/ownfile"
	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/signin"
)

func (t *tka) doctor() *cobra.Command {
	var cluster string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what stands in the way of signing in",
		Long: `Walk the way of a sign-in and say at each step whether it is in order and what to do if
not: settings, tailnet, server and its proof, clock, grant, sign-in, API server, rights,
kubeconfig, plugin and the other clusters that the server knows. Nothing is changed, but the key of a server that is new is remembered.

A failure is exit 1, or 3 or 5 if the first one is a refusal or something unreachable.`,
		Example: "  tka doctor\n  tka doctor --cluster prod-eu -o json",
		Args:    arguments(0, 0, ""),
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doDoctor(cmd.Context(), cluster) },
	}
	cmd.Flags().StringVar(&cluster, "cluster", "", "cluster, known to this machine or to its server")
	t.complete(cmd, "cluster", t.clusterNames)
	return cmd
}

// doctorInfo is the output of doctor.
type doctorInfo struct {
	meta
	Server   string            `json:"server"`
	Cluster  string            `json:"cluster"`
	State    checkup.State     `json:"state"` // of the worst finding
	Findings []checkup.Finding `json:"findings"`
}

func (t *tka) doDoctor(ctx context.Context, cluster string) error {
	facts, code := t.gather(ctx, cluster)
	all := checkup.Judge(facts)
	if facts.Settings.Message != "" { // the output format is in the settings, which are invalid
		t.output = cmp.Or(t.output, screen.Table)
	}
	info := doctorInfo{kind("Checkup"), facts.Server, facts.Cluster, checkup.Worst(all), all}
	var names []string
	for _, f := range all {
		names = append(names, f.Name+"/"+string(f.State))
	}
	err := t.show(answer{object: info, names: names, table: func(bool) { t.tellCheckup(all) }})
	if err == nil && info.State == checkup.Fail {
		return fault.Child(code)
	}
	return err
}

func (t *tka) tellCheckup(all []checkup.Finding) {
	colors := map[checkup.State]screen.Color{checkup.OK: screen.Green, checkup.Warn: screen.Yellow, checkup.Fail: screen.Red}
	for _, f := range all {
		fmt.Fprintf(t.Out, "%s %-13s %s\n", t.paint(t.Out, colors[f.State], fmt.Sprintf("%-7s", f.State)), f.Name, screen.Safe(f.Message))
		for _, line := range f.Advice[:min(len(f.Advice), fault.MaxAdvice)] {
			fmt.Fprintf(t.Out, "%-21s try: %s\n", "", screen.Safe(line))
		}
	}
}

// gather collects all facts. code is the exit code for a failed check: that of the first trouble.
func (t *tka) gather(ctx context.Context, cluster string) (f checkup.Facts, code int) {
	note := func(err error) checkup.Trouble {
		ft := fault.As(err)
		if code == 0 {
			code = ft.Code
		}
		return checkup.Trouble{Message: ft.Message, Advice: ft.Advice}
	}
	defer func() {
		if code == 0 {
			code = fault.Failed
		}
	}()
	f = checkup.Facts{Now: t.Now(), OurVersion: t.Build.Version, Tokens: checkup.OnDisk}
	set, err := t.settings()
	if err != nil {
		f.Settings = note(err)
		f.TailnetTrouble.Message = "It was not looked at"
		return f, code
	}
	if filepath.IsAbs(t.Getenv("XDG_RUNTIME_DIR")) {
		f.Tokens = checkup.InMemory
	}
	if set.CredentialCache == memory.CacheNone {
		f.Tokens = checkup.Nowhere
	}
	f.Tailnet, f.TailnetTrouble.Message = tailnetStatus(ctx)
	f.Kuberc = t.kuberc()
	l, denied, err := t.approach(ctx, cluster)
	if l != nil {
		f.Server = l.Base
		if at, err := http.ParseTime(l.Last.Header.Get("Date")); err == nil {
			f.Now, f.ServerTime = t.Now(), at
		}
	}
	if err != nil {
		f.ServerTrouble = note(err)
		return f, code
	}
	f.Cluster, f.Key, f.FirstContact, f.ServerVersion = l.Info.Name, l.Key.String(), l.First, l.Info.Version
	who, err := link.Call(ctx, l, signin.GetWhoami, signin.WhoamiRequest{})
	switch {
	case err != nil:
		f.WhoamiTrouble = note(err)
	default:
		f.Whoami = &who
		if !who.Decision.Allowed && code == 0 {
			code = fault.Refused
		}
	}
	if denied != nil {
		return f, code
	}
	t.gatherAPI(ctx, l, &f, note)
	t.gatherKube(l, set, &f, note)
	t.gatherDiscovery(ctx, l, &f)
	return f, code
}

// gatherDiscovery fetches the clusters that the server knows. Their problems do not prevent signing in to this server's cluster.
func (t *tka) gatherDiscovery(ctx context.Context, l *link.Link, f *checkup.Facts) {
	d, err := t.directory(ctx, l)
	if err != nil {
		f.DiscoveryTrouble.Message = sentence(err)
		if ft, ok := errors.AsType[*fault.Fault](err); ok {
			f.DiscoveryTrouble.Advice = ft.Advice
		}
		return
	}
	f.Discovery = &checkup.Discovery{None: d.Old, Isolated: d.Isolated, Refused: d.Refused}
	for _, e := range d.Entries {
		switch {
		case e.Self:
			f.Discovery.Own = true
			continue
		case e.Doubt == nil:
		case e.Conflict:
			f.Discovery.Conflicts = append(f.Discovery.Conflicts, e.Name)
		case !e.Verified:
			f.Discovery.Unverified = append(f.Discovery.Unverified, e.Name)
		case e.Doubt.Mark != "":
			f.Discovery.Elsewhere = append(f.Discovery.Elsewhere, e.Name)
		}
		f.Discovery.Others++
	}
}

// gatherAPI queries the API server, first anonymously and then with the token.
func (t *tka) gatherAPI(ctx context.Context, l *link.Link, f *checkup.Facts, note func(error) checkup.Trouble) {
	f.APIServer = l.Info.ServerURL
	api, err := kubeapi.New(l.Info.ServerURL, l.Info.CAData, signin.Token{})
	if err == nil {
		f.APIVersion, err = api.Version(ctx)
		if _, answered := errors.AsType[*kubeapi.Refusal](err); answered {
			err = nil
		}
	}
	if err != nil {
		f.APITrouble = note(apiFault(l.Info.ServerURL, err))
		return
	}
	if f.Whoami == nil || f.Whoami.Signin == nil || f.Whoami.Signin.State != signin.Ready {
		return
	}
	g, err := l.Kubeconfig(ctx)
	if err == nil {
		api, err = kubeapi.New(g.Server, g.CA, g.Token)
	}
	if err == nil {
		f.RulesIn = g.Namespace
		if f.RulesIn == "" {
			f.RulesIn = "default"
		}
		if f.Rules, err = api.Rules(ctx, f.RulesIn); err != nil {
			err = apiFault(g.Server, err)
		}
	}
	if err != nil {
		f.RulesTrouble = note(err)
	}
}

// gatherKube checks the kubeconfig and the plugin that it names.
func (t *tka) gatherKube(l *link.Link, set *memory.Settings, f *checkup.Facts, note func(error) checkup.Trouble) {
	view, err := t.readKube()
	if err == nil {
		_, err = t.editableKube()
	}
	if err != nil {
		f.KubeconfigTrouble = note(err)
		return
	}
	name := set.Prefix + l.Info.Name
	entry, there := view.Entry(name)
	f.Kubeconfig = &checkup.Kubeconfig{Context: name, There: there, Current: view.Current() == name,
		Fits: entry.Server == l.Info.ServerURL && bytes.Equal(entry.CA, l.Info.CAData)}
	if paths, err := t.kubePaths(); err == nil {
		for _, p := range paths {
			if s := ownfile.StaleLock(p); s != "" {
				f.Kubeconfig.Stale = s
			}
		}
	}
	if f.PluginCommand = entry.Command; there {
		if path, err := exec.LookPath(entry.Command); err == nil {
			f.Plugin = path
		}
	}
}

// tailnetLimit bounds the run of the tailscale command.
const tailnetLimit = 3 * time.Second

// tailnetStatus returns what the tailscale command reports about this machine, or why it reports nothing.
func tailnetStatus(ctx context.Context) (*checkup.Tailnet, string) {
	path, err := exec.LookPath("tailscale")
	if err != nil {
		return nil, "There is no command tailscale on this machine"
	}
	ctx, cancel := context.WithTimeout(ctx, tailnetLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "status", "--json", "--peers=false")
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	var status struct {
		BackendState string
		Self         *struct {
			DNSName   string
			KeyExpiry *time.Time
		}
	}
	if jerr := json.Unmarshal(out, &status); jerr != nil || status.BackendState == "" {
		return nil, fmt.Sprintf("The command tailscale gives no answer (%v)", cmp.Or(err, jerr, errors.New("it names no state")))
	}
	tailnet := &checkup.Tailnet{State: status.BackendState}
	if s := status.Self; s != nil {
		tailnet.Node = strings.TrimSuffix(s.DNSName, ".")
		if s.KeyExpiry != nil {
			tailnet.KeyExpiry = *s.KeyExpiry
		}
	}
	return tailnet, ""
}

// kuberc returns the plugin policy in kubectl's settings.
func (t *tka) kuberc() (k checkup.Kuberc) {
	path := t.Getenv("KUBERC")
	if path == "" {
		home, err := t.home()
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
	k = checkup.Kuberc{File: path, Policy: file.Policy}
	ours, err := exec.LookPath(t.plugin())
	for _, e := range file.List {
		command := e.Command
		if command == "" {
			command = e.Name
		}
		theirs, lerr := exec.LookPath(command)
		k.Listed = k.Listed || err == nil && lerr == nil && ours == theirs
	}
	return k
}

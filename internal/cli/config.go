package cli

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/safefile"
)

func (t *tka) configCommand(use string) *cobra.Command {
	var keys strings.Builder
	for _, k := range config.AllSettings() {
		fmt.Fprintf(&keys, "  %-28s %s\n", k.Name, k.Doc)
	}
	for _, k := range config.AllServerSettings()[1:] { // the name is part of the key
		fmt.Fprintf(&keys, "  %-28s %s\n", "servers.NAME."+k.Name, k.Doc)
	}
	var forget string
	cmd := &cobra.Command{
		Use:   use + " [KEY [VALUE]]",
		Short: "Show or change settings",
		Long: "Show all settings, show one setting, or change one. The file contains only the settings that\nyou set, and its comments stay.\n\n" +
			"With --forget-server, forget a server and its key. The next command trusts the key that the\nserver then has.\n\nKeys:\n" +
			strings.TrimSuffix(keys.String(), "\n"),
		Example: "  tka config\n  tka config server tka-prod\n  tka config servers.lab.url http://tka-lab\n  tka config --forget-server tka-prod",
		Args: func(cmd *cobra.Command, args []string) error {
			if forget != "" && len(args) > 0 {
				return output.UsageErrorf("--forget-server cannot be combined with a key of the settings").Try("tka config --help")
			}
			return arguments(0, 2, "a key and a value")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("forget-server") {
				return t.forgetServer(cmd, forget)
			}
			if len(args) == 2 {
				return t.writeSetting(cmd, args[0], args[1])
			}
			return t.showSettings(args)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return config.SettingNames(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().StringVar(&forget, "forget-server", "", "forget a server (name, URL or cluster) and its key")
	t.complete(cmd, "forget-server", t.clusterNames)
	return cmd
}

// forgetServer forgets a server and its key.
func (t *tka) forgetServer(cmd *cobra.Command, name string) error {
	set, err := t.settings()
	if err != nil {
		return err
	}
	base, err := set.AddressOfPinned(name)
	if err != nil && !dialpolicy.IsClusterName(name) {
		return output.UsageErrorf("%q is neither a server nor a cluster: %v", name, err).Because(err)
	}
	k, err := t.state()
	if err != nil {
		return err
	}
	full := t.newClient(base).FullNameURL(cmd.Context()) // tka stored the server of a bare name under its full name
	matches := func(s config.ServerRecord) bool {
		return s.URL == base || s.Cluster == name || full == "" && isNamedBy(s.URL, base) || full != "" && s.URL == full
	}
	forgotten := slices.DeleteFunc(slices.Clone(k.Servers), func(s config.ServerRecord) bool { return !matches(s) })
	if len(forgotten) == 0 {
		f := output.Errorf(output.ExitFailed, "This machine knows no server %s", name)
		for _, s := range k.Servers[:min(len(k.Servers), output.MaxAdvice)] {
			f.Try("tka config --forget-server %s   (%s)", output.ShellQuote(s.URL), s.Cluster)
		}
		return f
	}
	err = t.editState(cmd.Context(), func(k *config.State) { k.Servers = slices.DeleteFunc(k.Servers, matches) })
	if err != nil {
		return settingsError(err)
	}
	for _, s := range forgotten {
		for _, session := range append(slices.Collect(maps.Keys(s.Sessions)), "") {
			t.forgetToken(s.URL, s.Cluster, signin.Session(session))
		}
		t.hint("Forgot the server %s of %s and its key %v.", s.URL, s.Cluster, s.Key)
		if key := set.KeyFor(s.URL); !key.IsZero() {
			t.warn("the settings contain the key %v for it, which stays valid", key)
		}
	}
	return nil
}

// settingsInfo is the output of config.
type settingsInfo struct {
	meta
	File string `json:"file"`
	config.Settings
}

func (t *tka) showSettings(args []string) error {
	path, err := t.configFile()
	if err != nil {
		return err
	}
	set, err := t.settings()
	if err != nil {
		return err
	}
	pairs := mapped(config.AllSettings(), func(k config.Setting) [2]string { return [2]string{k.Name, k.Get(set)} })
	info := settingsInfo{newMeta("Settings"), path, *set}
	info.Servers = nonNil(set.Servers)
	for _, e := range set.Servers {
		pairs = append(pairs, [2]string{"servers." + e.Name + ".url", e.URL}, [2]string{"servers." + e.Name + ".key", e.Key.String()},
			[2]string{"servers." + e.Name + ".insecureHTTP", fmt.Sprint(e.InsecureHTTP)})
	}
	if len(args) == 1 {
		i := slices.IndexFunc(pairs, func(p [2]string) bool { return p[0] == args[0] })
		if i < 0 {
			return unknownSetting(config.UnknownSetting(args[0], mapped(pairs, pairName)...))
		}
		pairs = pairs[i : i+1]
	}
	var object any = info
	if len(args) == 1 {
		object = struct {
			meta
			Key   string `json:"key"`
			Value string `json:"value"`
		}{newMeta("Setting"), pairs[0][0], pairs[0][1]}
	}
	return t.printResult(result{object: object, names: mapped(pairs, pairName), table: func(bool) {
		if len(args) == 1 {
			fmt.Fprintln(t.Out, output.Escape(pairs[0][1]))
			return
		}
		t.writeTable(false, []string{"KEY", "VALUE"}, nil, mapped(pairs, func(p [2]string) []output.Cell { return output.Row(p[:]...) }))
	}})
}

func pairName(pair [2]string) string { return pair[0] }

func unknownSetting(err *config.UnknownSettingError) error {
	return output.UsageErrorf("%v", err).Because(err).Try("See the keys: tka config --help")
}

// writeSetting changes one setting in the file and leaves the rest unchanged.
func (t *tka) writeSetting(cmd *cobra.Command, key, value string) error {
	path, err := t.configFile()
	if err != nil {
		return err
	}
	l, err := safefile.LockAll(cmd.Context(), []string{path})
	if err != nil {
		return settingsError(err)
	}
	defer l.Release()
	text, err := safefile.Read(path)
	if err != nil {
		return settingsError(err)
	}
	if _, err := config.Parse(text); err != nil {
		return output.UsageErrorf("%s %v", path, err).Because(err).Try("Correct that line first.")
	}
	text, err = config.Set(text, key, value)
	if none, ok := errors.AsType[*config.UnknownSettingError](err); ok {
		return unknownSetting(none)
	}
	if err != nil {
		return output.UsageErrorf("%v", err).Because(err)
	}
	if _, err := config.Parse(text); err != nil {
		return output.UsageErrorf("%s cannot be %q: %v", key, value, err).Because(err).Try("See the keys: tka config --help")
	}
	if err := safefile.Write(path, text); err != nil {
		return settingsError(err)
	}
	t.cachedSettings = nil
	t.hint("Set %s in %s.", key, path)
	return nil
}

func settingsError(err error) error {
	return output.Errorf(output.ExitFailed, "the settings are unchanged: %v", err).Because(err).
		Try("%s", lockAdvice(err, "Use another file: --config FILE"))
}

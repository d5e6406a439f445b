package cli

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tailplane/tailplane/internal/cli/output"
)

// checkOneOf returns an error for a value that is not among values, and suggests the nearest one.
func checkOneOf(what, value string, values []string) error {
	if slices.Contains(values, value) {
		return nil
	}
	if suggestion := output.Suggest(value, values); suggestion != "" {
		return output.UsageErrorf("%s is %q; did you mean %q?", what, value, suggestion)
	}
	return output.UsageErrorf("%s is %q; it must be one of %s", what, value, strings.Join(values, ", "))
}

func unknownFlag(err error) (string, bool) {
	missing, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return "", false
	}
	if missing.GetSpecifiedShortnames() != "" {
		return "-" + missing.GetSpecifiedName(), true
	}
	return "--" + missing.GetSpecifiedName(), true
}

func flagNames(cmd *cobra.Command) []string {
	var names []string
	each := func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	}
	cmd.Flags().VisitAll(each)
	cmd.InheritedFlags().VisitAll(each)
	return names
}

func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	return names
}

// unknownCommand returns the argument that was meant as a subcommand of cmd but is none. It is for the case that parsing failed at a flag
// after it.
func unknownCommand(cmd *cobra.Command, args []string) (string, bool) {
	if !cmd.HasSubCommands() {
		return "", false
	}
	for i := 0; i < len(args); i++ {
		word := args[i]
		if !strings.HasPrefix(word, "-") {
			if found, _, err := cmd.Root().Find([]string{word}); err == nil && found != cmd.Root() {
				continue // a parent command or cmd itself
			}
			return word, true
		}
		if name, _, glued := strings.Cut(strings.TrimLeft(word, "-"), "="); !glued {
			f := cmd.Root().PersistentFlags().Lookup(name)
			if f == nil && len(name) == 1 {
				f = cmd.Root().PersistentFlags().ShorthandLookup(name)
			}
			if f != nil && f.NoOptDefVal == "" {
				i++ // skip its value
			}
		}
	}
	return "", false
}

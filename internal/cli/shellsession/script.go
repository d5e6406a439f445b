package shellsession

import (
	"cmp"
	_ "embed"
	"fmt"
	"path/filepath"
	"strings"
)

// A Shell is a supported shell. Bash stands for every POSIX shell.
type Shell string

// The shells.
const (
	Bash       Shell = "bash"
	Zsh        Shell = "zsh"
	Fish       Shell = "fish"
	PowerShell Shell = "powershell"
)

// Shells returns the names of all supported shells.
func Shells() []string {
	return []string{string(Bash), string(Zsh), string(Fish), string(PowerShell)}
}

// Quote quotes word as one shell word. It returns false if word contains a zero byte, which no shell word can hold.
func (s Shell) Quote(word string) (string, bool) {
	if strings.ContainsRune(word, 0) {
		return "", false
	}
	switch s {
	case Fish:
		return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(word) + "'", true
	case PowerShell: // PowerShell treats typographic quotes as quotes
		var b strings.Builder
		for _, r := range word {
			if strings.ContainsRune("'\u2018\u2019\u201a\u201b", r) {
				b.WriteRune(r)
			}
			b.WriteRune(r)
		}
		return "'" + b.String() + "'", true
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'", true
}

// An EnvChange sets or removes one environment variable. Names must be constants of tka, never untrusted text.
type EnvChange struct {
	Name  string
	Value string // "": remove the variable
}

// AssignEnv returns the shell code that applies changes to the environment.
func (s Shell) AssignEnv(changes []EnvChange) (string, error) {
	set, remove := "export %s=%s\n", "unset %s\n"
	switch s {
	case Fish:
		set, remove = "set -gx %s %s\n", "set -e %s\n"
	case PowerShell:
		set, remove = "$env:%s = %s\n", "Remove-Item -ErrorAction SilentlyContinue Env:%s\n"
	}
	var b strings.Builder
	for _, c := range changes {
		word, ok := s.Quote(c.Value)
		switch {
		case !ok:
			return "", fmt.Errorf("%s cannot have the value %q in a shell", c.Name, c.Value)
		case c.Value == "":
			fmt.Fprintf(&b, remove, c.Name)
		default:
			fmt.Fprintf(&b, set, c.Name, word)
		}
	}
	return b.String(), nil
}

// Prompt returns the beginning of the prompt in a shell for cluster. Shells expand a prompt each time they show it, so it contains nothing
// that a shell could expand.
func Prompt(cluster string) string {
	plain := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_:/@", r) {
			return r
		}
		return '?'
	}
	return "(tka:" + strings.Map(plain, cluster) + ") "
}

// A Startup is how to start an interactive shell whose prompt begins with a given text, after the person's own settings.
type Startup struct {
	Args  []string
	Env   []string
	Files map[string]string // to be written to the directory first
}

// InteractiveStartup returns the Startup of the shell program at path. folder is private and for this shell only. home is the person's home
// directory. zdotdir is the directory of zsh's settings, or "" if it is home.
func InteractiveStartup(path, prompt, folder, home, zdotdir string) Startup {
	ps1 := prompt + "$ "
	start := Startup{Env: []string{"PS1=" + ps1}}
	quoted, ok := Bash.Quote(prompt)
	if !ok {
		return start
	}
	switch name := strings.TrimSuffix(filepath.Base(path), ".exe"); name {
	case "bash":
		file := filepath.Join(folder, "bashrc")
		start.Args = []string{"--rcfile", file}
		start.Files = map[string]string{"bashrc": "[ ! -r ~/.bashrc ] || . ~/.bashrc\nPS1=" + quoted + "\"$PS1\"\n"}
	case "zsh":
		zdotdir = cmp.Or(zdotdir, home)
		zdotdirWord, ok := Bash.Quote(zdotdir)
		dirWord, ok2 := Bash.Quote(folder)
		if !ok || !ok2 {
			return start
		}
		start.Env = append(start.Env, "ZDOTDIR="+folder)
		// zsh reads each file from the directory that $ZDOTDIR names at that moment.
		start.Files = map[string]string{
			".zshenv": "ZDOTDIR=" + zdotdirWord + "\n[[ ! -r $ZDOTDIR/.zshenv ]] || . $ZDOTDIR/.zshenv\nTKA_ZDOTDIR=$ZDOTDIR\nZDOTDIR=" + dirWord + "\n",
			".zshrc":  "ZDOTDIR=$TKA_ZDOTDIR\nunset TKA_ZDOTDIR\n[[ ! -r $ZDOTDIR/.zshrc ]] || . $ZDOTDIR/.zshrc\nPROMPT=" + quoted + "\"$PROMPT\"\n",
		}
	case "fish":
		word, _ := Fish.Quote(prompt)
		start.Args = []string{"-C", "functions -q fish_prompt; and functions -c fish_prompt tka_own_prompt; or function tka_own_prompt; echo '> '; end; " +
			"function fish_prompt; echo -n " + word + "; tka_own_prompt; end"}
	case "pwsh", "powershell":
		word, _ := PowerShell.Quote(prompt)
		start.Args = []string{"-NoExit", "-Command", "$function:global:tkaOwnPrompt = $function:prompt; function global:prompt { " + word + " + (tkaOwnPrompt) }"}
	}
	return start
}

// EvalFileEnv is the environment variable with which the function of Integration passes the path of a file to tka. tka writes assignments
// to it. The file must not exist yet, its directory is new and private, and its base name is the shell's name.
const EvalFileEnv = "TKA_EVAL_FILE"

// The functions. They run tka with the standard input, output and terminal unchanged and do not parse arguments. They read the file only
// after exit code 0, and they return tka's exit code.
var (
	//go:embed integration.sh
	posixFunction string
	//go:embed integration.fish
	fishFunction string
	//go:embed integration.ps1
	powershellFunction string
)

// IntegrationScript returns the function tka for a shell. The function runs program, which is a name in PATH or a path.
func (s Shell) IntegrationScript(program string) (string, error) {
	text := posixFunction
	switch s {
	case Fish:
		text = fishFunction
	case PowerShell:
		text = powershellFunction
	}
	word, ok := s.Quote(program)
	if !ok {
		return "", fmt.Errorf("%q cannot be run by a shell", program)
	}
	return strings.NewReplacer("@PROGRAM@", word, "@SHELL@", string(s), "@VARIABLE@", EvalFileEnv).Replace(text), nil
}

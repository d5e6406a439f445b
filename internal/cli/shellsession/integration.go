package shellsession

import (
	_ "embed"
	"fmt"
	"strings"
)

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

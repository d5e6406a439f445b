package shellscript

import (
	_ "embed"
	"fmt"
	"strings"
)

// EvalFile is the variable by which the function of Integration names the file
// that tka writes assignments to. There is none at its path yet; its folder is
// private and fresh, and its extension is the shell's name.
const EvalFile = "TKA_EVAL_FILE"

// The functions. They run the program with standard input, output and terminal
// as they are and read no arguments; only after exit 0 do they read the file,
// and they return the program's own code.
var (
	//go:embed integration.sh
	posixFunction string
	//go:embed integration.fish
	fishFunction string
	//go:embed integration.ps1
	powershellFunction string
)

// Integration is the function tka for a shell. It runs program, which is a name
// in PATH or a path.
func (s Shell) Integration(program string) (string, error) {
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
	return strings.NewReplacer("@PROGRAM@", word, "@SHELL@", string(s), "@VARIABLE@", EvalFile).Replace(text), nil
}

// Command acceptance lists the rows of docs/acceptance.md without a test. A test covers a row if its name or comment
// contains the id of the row.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

func main() {
	root := flag.String("root", "..", "the source tree")
	all := flag.Bool("all", false, "also list the owners")
	flag.Parse()
	missing, err := run(*root, *all)
	if err != nil {
		fmt.Fprintln(os.Stderr, "acceptance:", err)
		os.Exit(2)
	}
	if missing > 0 {
		os.Exit(1)
	}
}

// row is one line of the table: "| SGN-07 | what | |". The last column names what the row waits for. It is empty when
// the row can be tested.
type row struct{ id, what, waits string }

var (
	rowForm = regexp.MustCompile(`^\| ([A-Z]+-[0-9]+) \| (.*?) \| (.*?) ?\|$`)
	idForm  = regexp.MustCompile(`\b([A-Z]{2,5})-?([0-9]{2})`)
)

func run(root string, all bool) (missing int, err error) {
	rows, err := readRows(filepath.Join(root, "docs", "acceptance.md"))
	if err != nil {
		return 0, err
	}
	owners, err := readOwners(root)
	if err != nil {
		return 0, err
	}
	owned, waiting := 0, 0
	for _, r := range rows {
		switch {
		case len(owners[r.id]) > 0:
			owned++
			if all {
				fmt.Printf("%-7s %s\n", r.id, strings.Join(owners[r.id], " "))
			}
		case r.waits != "":
			waiting++
			if all {
				fmt.Printf("%-7s needs %s\n", r.id, r.waits)
			}
		default:
			missing++
			fmt.Printf("%-7s has no test: %s\n", r.id, r.what)
		}
	}
	fmt.Printf("%d rows: %d have a test, %d need a part that is not built, %d have no test\n", len(rows), owned, waiting, missing)
	return missing, nil
}

func readRows(path string) (rows []row, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		if m := rowForm.FindStringSubmatch(s.Text()); m != nil {
			rows = append(rows, row{m[1], m[2], m[3]})
		}
	}
	return rows, s.Err()
}

// readOwners finds the ids that tests contain: "SGN-07" in a comment, "ID01" in a name.
func readOwners(root string) (map[string][]string, error) {
	owners := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (name == "node_modules" || name == ".git") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, "_test.go") && !strings.HasSuffix(name, ".test.ts") && name != "test.sh" || name == "index_test.go" {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		seen := map[string]bool{}
		for _, m := range idForm.FindAllStringSubmatch(string(b), -1) {
			if id := m[1] + "-" + m[2]; !seen[id] {
				seen[id] = true
				owners[id] = append(owners[id], rel)
			}
		}
		return nil
	})
	return owners, err
}

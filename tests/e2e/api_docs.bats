#!/usr/bin/env bats
# docs/failures.md: every test it names exists, and every row of its parts is there.

@test "docs/failures.md names tests that there are" {
	local row file name missing= found=0

	cd "$HEDDLE_SRCDIR"
	# "file: `name`, `name` (words); file: `name`" in the last column
	while IFS= read -r row; do
		while IFS= read -r part; do
			file=${part%%:*}
			file=${file## }
			while IFS= read -r name; do
				found=$((found + 1))
				case $file in
				*.bats) grep -qF "@test \"$name\"" "tests/e2e/$file" ;;
				*) grep -q "$name(void" tests/*/"$file.c" ;;
				esac || missing="$missing$file: $name
"
			done < <(printf '%s\n' "${part#*:}" | sed 's/([^)]*)//g' | grep -o '`[^`]*`' | tr -d '`')
		done < <(printf '%s\n' "${row##*| }" | sed 's/([^)]*)//g; s/ |$//' | tr ';' '\n')
	done < <(grep -E '^\| [0-9]+ \|' docs/failures.md | sed 's/ |$//')
	echo "$missing"
	[ -z "$missing" ]
	[ "$found" -gt 60 ]
}

@test "docs/failures.md has each row of its parts once" {
	local have want="67 68 70 71 72 74 76 77 79 80 81 82 83 84 85 86 87 88 89 90 91 96 97 101 102 103 \
105 106 107 110 111 112 124 127 128 130 132 133"

	have=$(sed -n 's/^| \([0-9]*\) |.*/\1/p' "$HEDDLE_SRCDIR/docs/failures.md" | tr '\n' ' ')
	[ "${have% }" = "$want" ]
}

#!/bin/sh
# prepare.sh DIR [HOST:PORT]: a federation of three clients with made data, for compose.yaml. FEDTAILOR is the command.
set -eu
directory="$1"
address="${2:-coordinator:9092}"
fedtailor="${FEDTAILOR:-docker run --rm --volume $(pwd):/data fedtailor}"

mkdir -p "$directory"
seed=0
for name in north south west; do
    seed=$((seed + 1))
    awk -v seed="$seed" 'BEGIN {
        srand(seed); print "age,pulse,ill"
        for (row = 0; row < 150; row++) {
            age = 20 + 60 * rand(); pulse = 50 + 40 * rand()
            print age "," pulse "," ((age - pulse + 40 * rand() > 0) ? "yes" : "no")
        }
    }' > "$directory/$name.csv"
done
$fedtailor federation init "$directory/wards" --clients north,south,west --address "$address" \
    --data "$directory/north.csv" --target ill
# Three rounds are enough to see that it works.
sed 's/^rounds = .*/rounds = 3/' "$directory/wards/job.toml" > "$directory/wards/job.new"
mv "$directory/wards/job.new" "$directory/wards/job.toml"
for name in north south west; do
    kit="$directory/wards/kits/$name"
    cp "$directory/wards/job.toml" "$kit/"
    $fedtailor federation join "$kit" --init-policy
done

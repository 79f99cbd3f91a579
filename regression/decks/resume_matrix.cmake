# Stop and go on, to the bit: every family with every ZeRO stage (resume_matrix.cases), with checkpoint.async alternating;
# behind `exhaustive` each of them with both values.
foreach(family gpt2 llama qwen3 mixtral deepseek)
  orthant_deck_test(resume.${family} resume_matrix.sh 4 "resume" 180 "${work}/resume.${family}" ${family} 0123)
  orthant_deck_test(resume.full.${family} resume_matrix.sh 4 "resume;exhaustive" 400 "${work}/resume.full.${family}" ${family} 0123 both)
endforeach()

# The golden curve in four lives on four meshes.
foreach(family gpt2 llama qwen3 mixtral deepseek)
  orthant_deck_test(golden.lives.${family} golden_lives.sh 4 "golden" 180 "${work}/golden.lives.${family}" ${family})
endforeach()

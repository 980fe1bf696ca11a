// SPDX-License-Identifier: MIT
// Who and what the stories are about: tables from which a story draws its characters, places and
// things.
//
// A row is one choice, each equally likely. Its columns belong together, so that what a story says
// later agrees with what it said before: the pronouns of a name, the reason of an obstacle and the
// way around it. Cells may hold slots, see story_grammar.hpp. All text was written for this model.
//
// Layer     example.
#pragma once

#include <string_view>
#include <vector>

namespace demo_model {

struct Table {
  std::vector<std::string_view> columns;
  std::vector<std::vector<std::string_view>> rows;  // each as long as `columns`
};

inline const Table kChildren{{"name", "he", "him", "his", "kind"},
                             {{"Lily", "she", "her", "her", "girl"},
                              {"Mia", "she", "her", "her", "girl"},
                              {"Anna", "she", "her", "her", "girl"},
                              {"Rosa", "she", "her", "her", "girl"},
                              {"Nora", "she", "her", "her", "girl"},
                              {"Ella", "she", "her", "her", "girl"},
                              {"Ruby", "she", "her", "her", "girl"},
                              {"Clara", "she", "her", "her", "girl"},
                              {"Tom", "he", "him", "his", "boy"},
                              {"Ben", "he", "him", "his", "boy"},
                              {"Max", "he", "him", "his", "boy"},
                              {"Leo", "he", "him", "his", "boy"},
                              {"Sam", "he", "him", "his", "boy"},
                              {"Finn", "he", "him", "his", "boy"},
                              {"Jack", "he", "him", "his", "boy"},
                              {"Otto", "he", "him", "his", "boy"}}};

inline const Table kAnimalNames{{"name", "he", "him", "his"},
                                {{"Momo", "she", "her", "her"},
                                 {"Bibi", "she", "her", "her"},
                                 {"Coco", "she", "her", "her"},
                                 {"Tilly", "she", "her", "her"},
                                 {"Daisy", "she", "her", "her"},
                                 {"Poppy", "she", "her", "her"},
                                 {"Pip", "he", "him", "his"},
                                 {"Bruno", "he", "him", "his"},
                                 {"Hugo", "he", "him", "his"},
                                 {"Milo", "he", "him", "his"},
                                 {"Rolo", "he", "him", "his"},
                                 {"Toby", "he", "him", "his"}}};

inline const Table kAnimals{{"kind"},
                            {{"rabbit"},
                             {"mouse"},
                             {"fox"},
                             {"duck"},
                             {"frog"},
                             {"cat"},
                             {"squirrel"},
                             {"hedgehog"},
                             {"otter"},
                             {"owl"},
                             {"bear"},
                             {"turtle"}}};

inline const Table kTraits{{"word"},
                           {{"little"},
                            {"kind"},
                            {"brave"},
                            {"happy"},
                            {"clever"},
                            {"cheerful"},
                            {"gentle"},
                            {"curious"},
                            {"quiet"},
                            {"eager"}}};

inline const Table kHomes{{"where"},
                          {{"in a small house by the sea"},
                           {"at the edge of a green forest"},
                           {"in a village on a hill"},
                           {"on a farm near a river"},
                           {"in a white house with a red door"},
                           {"next to a quiet lake"},
                           {"in a little town between two mountains"},
                           {"beside an old mill"}}};

inline const Table kTimes{{"when"},
                          {{"one sunny morning"},
                           {"one warm day"},
                           {"one windy day"},
                           {"one quiet afternoon"},
                           {"on the first day of spring"},
                           {"early one morning"},
                           {"one bright day in summer"},
                           {"after breakfast one day"}}};

inline const Table kColors{
    {"word"},
    {{"red"}, {"blue"}, {"green"}, {"yellow"}, {"white"}, {"orange"}, {"purple"}, {"silver"}}};

inline const Table kToys{
    {"word"}, {{"ball"}, {"kite"}, {"boat"}, {"drum"}, {"doll"}, {"train"}, {"wagon"}, {"puppet"}}};

inline const Table kFamily{{"word"},
                           {{"mother"},
                            {"father"},
                            {"grandmother"},
                            {"grandfather"},
                            {"aunt"},
                            {"uncle"},
                            {"sister"},
                            {"brother"}}};

inline const Table kPlaces{{"word", "in"},
                           {{"park", "in the park"},
                            {"garden", "in the garden"},
                            {"meadow", "in the meadow"},
                            {"beach", "on the beach"},
                            {"forest", "in the forest"},
                            {"playground", "on the playground"},
                            {"field", "in the field"},
                            {"valley", "in the valley"}}};

inline const Table kSpots{{"where"},
                          {{"under a bench"},
                           {"behind a big stone"},
                           {"inside a hollow tree"},
                           {"between two bushes"},
                           {"beside an old gate"},
                           {"under a pile of leaves"},
                           {"near the little bridge"},
                           {"in the tall grass"}}};

/// What grows too high, and whose gift brings it down.
inline const Table kFruits{{"one", "many", "made"},
                           {{"apple", "apples", "a sweet pie"},
                            {"pear", "pears", "a fresh cake"},
                            {"plum", "plums", "a jar of jam"},
                            {"cherry", "cherries", "a warm pie"},
                            {"orange", "oranges", "a jug of juice"},
                            {"nut", "nuts", "a bowl of soup"}}};

inline const Table kTries{{"did", "failed"},
                          {{"jumped as high as [hero.he] could", "[hero.his] legs were too short"},
                           {"threw a stick at the branch", "the stick fell into the grass"},
                           {"climbed on a box", "the box broke in two"},
                           {"shook the tree with both hands", "the tree did not move at all"},
                           {"stood on a big rock", "[hero.his] arms were too short"},
                           {"tried to climb up", "the bark was too smooth"}}};

inline const Table kHelpers{
    {"kind", "helped", "because"},
    {{"giraffe", "stretched [pal.his] long neck and shook the branch", "so tall"},
     {"monkey", "swung up from branch to branch", "so quick"},
     {"bird", "flew up to the very top", "so light"},
     {"elephant", "reached up with [pal.his] long trunk", "so strong"},
     {"goat", "stood on two legs and bent the branch", "so clever"},
     {"squirrel", "ran up the tree like the wind", "so fast"}}};

/// What a cake lacks, and who has it.
inline const Table kIngredients{
    {"word", "owner", "place", "task", "done"},
    {{"flour", "the miller", "mill", "carry a sack up the stairs",
      "carried the sack up the stairs"},
     {"milk", "the farmer", "farm", "bring the cows home", "brought the cows home"},
     {"honey", "the old bear", "cave", "sweep the floor", "swept the floor"},
     {"eggs", "the hen", "barn", "fix the fence", "fixed the fence"},
     {"butter", "the baker", "shop", "wash the dishes", "washed the dishes"},
     {"sugar", "the cook", "kitchen", "stir the big pot", "stirred the big pot"}}};

inline const Table kStorms{{"what", "did"},
                           {{"a storm", "the rain fell hard"},
                            {"a snow storm", "the snow covered the road"},
                            {"a cold wind", "the wind shook the trees"},
                            {"a big thunder cloud", "the thunder rolled over the hill"}}};

/// How a guest gives back what was done for him.
inline const Table kTroubles{
    {"what", "cried", "solved"},
    {{"fell into a deep hole", "I cannot get out of this hole!", "let down a long rope"},
     {"lost the way in the dark wood", "I cannot find the way home!",
      "showed [hero.him] the path with a lamp"},
     {"got stuck in the mud", "I cannot move my feet!", "pulled with all [pal.his] strength"},
     {"dropped the house key into the river", "I cannot open my door!",
      "dived down and brought up the key"},
     {"cut a foot on a sharp stone", "I cannot walk any more!", "carried [hero.him] home"}}};

inline const Table kFears{{"of", "where", "step", "last", "now"},
                          {{"the dark", "in the cellar", "held up a little lamp",
                            "put out the lamp for a moment", "slept without a light"},
                           {"deep water", "at the lake", "put one foot into the water",
                            "swam to the other side", "swam every day"},
                           {"high places", "on the tower", "walked up three steps",
                            "climbed to the very top", "climbed every hill"},
                           {"thunder", "in the attic", "counted after each flash",
                            "laughed at the loud noise", "sang in every storm"},
                           {"big dogs", "at the farm", "looked at the old dog from far away",
                            "patted the dog on its head", "played with every dog"},
                           {"singing aloud", "at school", "hummed one short tune",
                            "sang a whole song", "sang for everyone"}}};

/// Things that somebody has lost.
inline const Table kTreasures{{"thing", "shine", "owner", "sad", "reward"},
                              {{"gold ring", "shone in the sun", "an old woman",
                                "It was a gift from my husband", "a basket of cookies"},
                               {"silver key", "sparkled like a star", "an old man",
                                "It opens the box with my letters", "a book of fairy tales"},
                               {"small purse", "was full of coins", "a poor farmer",
                                "It holds the money for my bread", "a basket of eggs"},
                               {"shiny watch", "ticked softly", "a young teacher",
                                "It belonged to my father", "a box of paints"},
                               {"little bell", "rang with a clear sound", "an old shepherd",
                                "My sheep follow its sound", "a soft wool scarf"},
                               {"glass bead", "glowed in all colors", "an artist",
                                "It is the eye of my best puppet", "a tiny wooden horse"}}};

inline const Table kRepairs{{"part", "tool"},
                            {{"broke into two pieces", "some glue"},
                             {"got a big hole", "a needle and thread"},
                             {"lost its handle", "a bit of string"},
                             {"got a long crack", "some strong tape"}}};

inline const Table kBuildings{
    {"what", "why", "from", "ruin", "stronger"},
    {{"bridge", "cross the stream with dry feet", "old planks", "the water washed it away",
      "heavy stones on both sides"},
     {"tree house", "look at the stars", "branches", "the wind blew it down", "thick ropes"},
     {"raft", "sail to the island", "logs", "a big wave broke it", "tight knots"},
     {"wall", "keep the sheep safe", "round stones", "a goat knocked it over", "wet clay"},
     {"hut", "stay dry in the rain", "reeds", "the roof fell in", "a roof of thick leaves"},
     {"cart", "bring wood to the village", "boards", "one wheel fell off", "iron nails"}}};

}  // namespace demo_model
